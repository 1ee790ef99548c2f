"""How blocks, clients and processes end when nothing goes well: `python3 unwinding.py HOST PORT`.

No verdict depends on time.
"""

import asyncio
import contextlib
import gc
import os
import socket
import sys
import unittest
from collections.abc import AsyncIterator
from unittest import mock

import client as tests
import fairlock
from client import LONG, OnAServer, connected, name
from fairlock._connection import Address, Connection, Disconnected
from fairlock._engine import Settings
from fairlock._subscription import Subscription
from stepping import at_each_await

# What ends at all ends by then, on any machine.
ENDS = 60.0


class Relay:
    """Stands between clients and the server, and passes nothing on while it is silent: as a server that is frozen."""

    def __init__(self) -> None:
        self.passes = asyncio.Event()
        self.passes.set()
        self.url = ""
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[object]] = []

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self.passes.wait()
                writer.write(data)
        writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        address = Address.of_url(tests.URL)
        to_server = await asyncio.open_connection(address.host, address.port)
        await asyncio.gather(self._pump(reader, to_server[1]), self._pump(to_server[0], writer))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Relay"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            self.passes.set()
            server.close()
            for writer in self._writers:
                writer.close()
            await asyncio.gather(*self._tasks, return_exceptions=True)


class SilentServer(OnAServer):
    """The block's own error wins, and waits for a server that does not reply no longer than for one call."""

    @contextlib.asynccontextmanager
    async def relayed(self, patience: float) -> AsyncIterator[tuple[Relay, fairlock.Client]]:
        with mock.patch.object(Settings, "patience", patience):
            async with Relay().running() as relay, fairlock.Client(relay.url, lease=LONG) as client:
                yield relay, client
                relay.passes.set()

    async def test_a_block_that_is_cancelled_waits_for_no_reply(self) -> None:
        # No connection counts as dead while the test runs.
        async with self.relayed(patience=LONG) as (relay, client):
            lock, inside = client.rw_lock(name()), asyncio.Event()

            async def block() -> None:
                async with lock.write():
                    inside.set()
                    await asyncio.Event().wait()

            async def block_with_a_time_limit() -> None:
                async with asyncio.timeout(None) as limit:
                    async with lock.write():
                        relay.passes.clear()
                        limit.reschedule(asyncio.get_running_loop().time())
                        await asyncio.Event().wait()

            task = asyncio.create_task(block())
            await inside.wait()
            relay.passes.clear()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await asyncio.wait_for(task, ENDS)
            relay.passes.set()
            await self.watch.until_counts(lock.name, 0, 0, "released in the background")
            with self.assertRaises(TimeoutError):
                # wait_for would raise the same.
                task = asyncio.create_task(block_with_a_time_limit())
                self.assertTrue((await asyncio.wait({task}, timeout=ENDS))[0], "the block ends")
                await task
            relay.passes.set()
            await self.watch.until_counts(lock.name, 0, 0, "released in the background")

    async def test_a_block_that_the_end_of_its_loop_cancels_has_released(self) -> None:
        lock = name()

        async def program() -> None:
            client = await fairlock.Client(tests.URL, lease=LONG).connect()
            inside = asyncio.Event()

            async def block() -> None:
                async with client.rw_lock(lock).write():
                    inside.set()
                    await asyncio.Event().wait()

            self.block = asyncio.create_task(block())
            await inside.wait()

        await asyncio.to_thread(asyncio.run, program())
        await self.watch.until_counts(lock, 0, 0, "released though nobody closed the client")

    async def test_a_block_that_raises_waits_for_one_reply(self) -> None:
        async with self.relayed(patience=LONG) as (relay, client):
            lock = client.rw_lock(name())
            link = client._connected()._session._link
            assert link is not None

            async def block() -> None:
                async with lock.write():
                    relay.passes.clear()
                    # The connection ends while the release has no reply, or before it is sent.
                    asyncio.get_running_loop().call_later(0.1, link.connection.close)
                    raise KeyError("of the block")

            with self.assertRaises(KeyError):
                await asyncio.wait_for(block(), ENDS)
            relay.passes.set()
            await self.watch.until_counts(lock.name, 0, 0, "released in the background")

    async def test_a_block_that_raises_has_released_if_the_server_replies(self) -> None:
        async with connected() as client:
            lock = client.rw_lock(name())
            with self.assertRaises(KeyError):
                async with lock.write():
                    raise KeyError("of the block")
            self.assertEqual(await self.watch.counts(lock.name), (0, 0))

    async def test_the_error_of_a_block_hides_a_refusal(self) -> None:
        async with connected() as client:
            lock = client.rw_lock(name())
            keys = tests.keys("fairlock", lock.name)
            with self.assertRaises(KeyError):
                async with lock.write():
                    await self.watch.connection.call("SET", keys.state, "another program's")
                    raise KeyError("of the block")
            await self.watch.connection.call("DEL", *keys)


class Tasks(OnAServer):
    async def test_an_acquisition_is_an_awaitable_and_no_coroutine(self) -> None:
        async with connected() as client:
            lock = client.rw_lock(name())
            with self.assertRaises(TypeError):
                asyncio.create_task(lock.write())  # type: ignore[arg-type]
            guard = await asyncio.ensure_future(lock.write())
            await guard.release()


class Forked(OnAServer):
    """A child of os.fork() has the parent's sockets."""

    def unwind(self, client: fairlock.Client, lock: fairlock.RwLock, guards: list[fairlock.Guard]) -> None:
        """As far as a child comes without a reply."""
        engine = client._connected()
        for job in (
            guards[0].__aexit__(None, None, None),
            guards[1].__aexit__(KeyError, KeyError(), None),
            guards[2].release(),
            lock.read().try_acquire(),
            client.close(),
            engine._session.command("ECHO", "from the child"),
        ):
            with contextlib.suppress(Exception):
                job.send(None)
        guards.clear()
        gc.collect()
        assert engine._session._link is not None and engine._subscription._connection is not None
        for connection in (engine._session._link.connection, engine._subscription._connection):
            connection._look()
            connection.send("ECHO", "from the child").exception()
            connection.close()

    async def test_a_child_that_unwinds_sends_nothing(self) -> None:
        async with connected() as client:
            lock = client.rw_lock(name())
            guards = [await lock.read() for _ in range(4)]
            engine = client._connected()
            child = os.fork()
            if child == 0:
                try:
                    self.unwind(client, lock, guards)
                    os._exit(0)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0, "the child came to its end")
            # Behind whatever the child sent, over the same socket.
            self.assertEqual(await engine._session.command("ECHO", "from the parent"), "from the parent")
            self.assertEqual(await self.watch.counts(lock.name), (4, 0))
            for guard in guards:
                await guard.release()
            self.assertFalse(engine._subscription._connection.ended.done())

    async def test_a_copy_says_that_it_is_one(self) -> None:
        async with connected() as client:
            lock = client.rw_lock(name())
            guard = await lock.write()
            another = os.getpid() + 1
            with mock.patch.object(os, "getpid", lambda: another):
                for job in (lock.write()._acquire(), guard.release()):
                    with self.assertRaisesRegex(fairlock.ClosedError, "fork"):
                        await asyncio.wait_for(job, ENDS)
                guard._left = False
                async with guard:
                    pass
                guard.__del__()
                client._connected().leave(guard._request)
                await client.close()
            self.assertEqual(await self.watch.counts(lock.name), (1, 0))
            await guard.release()


class Connecting(OnAServer):
    async def test_a_client_connects_once(self) -> None:
        before = await self.watch.clients()
        client = fairlock.Client(tests.URL, lease=LONG)
        ended = await asyncio.gather(client.connect(), client.connect(), return_exceptions=True)
        self.assertEqual([type(end) for end in ended], [fairlock.Client, fairlock.ClosedError])
        self.assertEqual(await self.watch.clients(), before + 2)
        await client.close()

    async def test_a_client_that_is_closed_while_it_connects_is_not_connected(self) -> None:
        before = await self.watch.clients()

        async def gone() -> bool:
            return await self.watch.clients() == before

        # So many steps of the event loop after the beginning.
        for steps in range(40):
            client = fairlock.Client(tests.URL, lease=LONG)
            connecting = asyncio.create_task(client.connect())
            for _ in range(steps):
                await asyncio.sleep(0)
            # It has begun, or connect() would be the one that comes later.
            await asyncio.sleep(0)
            await client.close()
            try:
                await connecting
            except fairlock.ClosedError:
                pass
            with self.assertRaises(fairlock.ClosedError, msg=f"{steps} steps"):
                await client.rw_lock(name()).write()
            await self.watch.until(f"no connection is left: {steps} steps", gone)

    async def test_a_client_that_could_not_connect_may_try_again(self) -> None:
        client = fairlock.Client(tests.URL, lease=LONG)
        with mock.patch.object(client, "_settings", fairlock.Client("redis://127.0.0.1:1")._settings):
            with self.assertRaises(fairlock.UnavailableError):
                await client.connect()
        async with client:
            pass

    async def test_a_server_that_refuses_each_script_is_connected_to_after_growing_pauses(self) -> None:
        async with Relay().running() as relay, fairlock.Client(relay.url, lease=LONG) as client:
            session = client._connected()._session
            lock = tests.keys("fairlock", name())
            pauses = []

            async def sleep(seconds: float) -> None:
                pauses.append(seconds)

            link = session._link
            assert link is not None
            refusal = tests.ReplyError("READONLY You can't write against a read only replica.")
            session.on_left = lambda: None
            with mock.patch.object(asyncio, "sleep", sleep), mock.patch.object(type(link), "call", side_effect=refusal):
                for _ in range(8):
                    with self.assertRaises(tests.ReplyError):
                        await session.script("renew", lock, "")
            self.assertEqual([pause for pause in pauses if pause], [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5])
            await session.script("renew", lock, "")
            self.assertEqual(session._pause, 0.0, "a script has succeeded")

    async def test_the_subscription_is_made_anew_with_the_connection_for_calls(self) -> None:
        # Nobody is refused anything if that connection ends before the name leads to another server.
        async with connected() as client:
            session, subscription = client._connected()._session, client._connected()._subscription
            before = subscription._connection
            assert before is not None and session._link is not None
            session._link.connection.close()
            await (await client.rw_lock(name()).write()).release()
            await asyncio.wait_for(asyncio.shield(before.ended), ENDS)

    async def subscribed_after_a_switch(self, client: fairlock.Client, confirms: bool) -> None:
        """Both connections of the client break, and its name leads to a former server for a moment."""
        session, subscription = client._connected()._session, client._connected()._subscription
        before, channel, announcements = subscription._connection, subscription._channel, subscription._announcements
        asked, switched = asyncio.Event(), asyncio.Event()

        async def former(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                await reader.readuntil(f"{announcements}\r\n".encode())
                asked.set()
                await switched.wait()
                if confirms:
                    # A connection begins with a PING.
                    writer.write(b"+PONG\r\n-ERR unknown command\r\n")
                    for each in (channel, announcements):
                        writer.write(f"*3\r\n$9\r\nsubscribe\r\n${len(each)}\r\n{each}\r\n:1\r\n".encode())
                await reader.read()
            writer.close()

        async def subscribed() -> bool:
            return subscription._connection not in (None, before)

        assert before is not None and session._link is not None
        server = await asyncio.start_server(former, "127.0.0.1", 0)
        with mock.patch.object(subscription, "_address", Address(port=server.sockets[0].getsockname()[1])):
            before.close()
            await asyncio.wait_for(asked.wait(), ENDS)
        session._link.connection.close()
        await (await client.rw_lock(name()).write()).release()
        switched.set()
        await self.watch.until("a subscription", subscribed)
        heard = await self.watch.connection.call("PUBSUB", "NUMSUB", channel)
        self.assertEqual(heard, [channel, 1], "the server of the calls tells the grants")
        server.close()

    async def test_a_subscription_does_not_wait_at_a_former_server_and_does_not_stay_there(self) -> None:
        # No connection counts as dead while the test runs.
        with mock.patch.object(Settings, "patience", LONG):
            async with connected() as client:
                for confirms in (True, False):
                    await self.subscribed_after_a_switch(client, confirms)

    async def test_a_subscription_that_is_being_made_is_left_at_any_await(self) -> None:
        async with connected() as client:
            address = Address.of_url(tests.URL)
            made: list[Subscription] = []
            left: list[Subscription] = []

            async def subscribe() -> None:
                made.append(Subscription(address, LONG, "mine", "listen", lambda _: None, lambda: None))
                with contextlib.suppress(Disconnected):
                    await made[-1].subscribe(client._connected()._session)

            def leave(_: object) -> None:
                left.append(made[-1])
                made[-1].close()

            async def is_closed(run: str) -> None:
                connection = made[-1]._connection
                # The last run ended before anybody left.
                if made[-1] in left:
                    self.assertTrue(connection is None or connection.ended.done(), run)
                made[-1].close()

            awaits = await at_each_await(leave, subscribe, is_closed)
            self.assertGreaterEqual(awaits, 3, "the connection; the confirmation; who listens")

    async def test_a_dead_address_of_a_name_does_not_keep_the_client_out(self) -> None:
        address = Address.of_url(tests.URL)
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        loop, timeout = asyncio.get_running_loop(), asyncio.timeout
        connect, limits, asked = loop.create_connection, [], 0

        async def create_connection(*args: object, **kwargs: object) -> object:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise TimeoutError("its packets are dropped")
            return await connect(*args, **kwargs)  # type: ignore[arg-type, misc]

        def limited(seconds: float) -> asyncio.Timeout:
            limits.append(seconds)
            return timeout(60.0)

        with (
            mock.patch.object(socket, "getaddrinfo", side_effect=socket.gaierror),
            mock.patch.object(loop, "getaddrinfo", mock.AsyncMock(return_value=[*found, *found])),
            mock.patch.object(loop, "create_connection", create_connection),
            mock.patch.object(asyncio, "timeout", limited),
        ):
            connection = await Connection.open(address, 0.1)
        connection.close()
        self.assertEqual(asked, 2, "the second one is alive")
        self.assertEqual(limits, [2.0, 1.0, 1.0], "each has a part of the time")

    async def test_the_subscription_leaves_a_server_that_is_no_master_any_more(self) -> None:
        async with connected() as client:
            subscription = client._connected()._subscription
            before = subscription._connection
            assert before is not None
            await self.watch.connection.call("REPLICAOF", "127.0.0.1", "1")
            try:
                waiter = asyncio.create_task(client.rw_lock(name()).write()._acquire())
                await asyncio.wait_for(asyncio.shield(before.ended), ENDS)
                await asyncio.sleep(0.2)
                self.assertIn(subscription._connection, (None, before), "none at a replica")
            finally:
                await self.watch.connection.call("REPLICAOF", "NO", "ONE")
            await (await waiter).release()

            async def again() -> bool:
                return subscription._connection not in (None, before)

            await self.watch.until("a subscription at the master", again)

    async def test_a_lasting_refusal_of_the_subscription_is_told_once(self) -> None:
        user = f"deaf-{name().split(':')[1]}"
        command = self.watch.connection.call
        await command("ACL", "SETUSER", user, "on", ">SECRET", "~*", "&*", "+@all")
        url = tests.URL.replace("//", f"//{user}:SECRET@")
        async with fairlock.Client(url, lease=LONG) as client:
            subscription = client._connected()._subscription
            attempts = 0
            subscribe = subscription.subscribe

            async def counted(session: object) -> None:
                nonlocal attempts
                attempts += 1
                await subscribe(session)  # type: ignore[arg-type]

            async def three_times() -> bool:
                return attempts >= 3

            with mock.patch.object(subscription, "subscribe", counted), self.assertLogs("fairlock", "WARNING") as logged:
                await command("ACL", "SETUSER", user, "resetchannels")
                await self.watch.until("refusals", three_times)
            self.assertEqual(len(logged.output), 1, logged.output)
            self.assertIn("NOPERM", logged.output[0])
        await command("ACL", "DELUSER", user)


if __name__ == "__main__":
    tests.URL = f"redis://{sys.argv[1]}:{sys.argv[2]}"
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
