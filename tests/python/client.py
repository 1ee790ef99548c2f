"""The client of clients/python on a real server: `python3 client.py HOST PORT`. No verdict depends on time."""

import asyncio
import contextlib
import gc
import pathlib
import sys
import traceback
import unittest
import uuid
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from unittest import mock

import fairlock
from fairlock._connection import Address, Connection, Disconnected
from fairlock._names import keys
from fairlock._resp import ReplyError
from fairlock._scripts import lua
from fairlock._subscription import Subscription
from stepping import cancelled_at_each_await

# Leases so long that whatever is left behind stays for the whole test.
LONG = 600.0
# Looks at the server, some milliseconds apart. Only what never happens takes as many.
LOOKS = 20_000

ROOT = pathlib.Path(__file__).resolve().parents[2]
URL = ""


class Watch:
    """Looks at the server with its own eyes."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def counts(self, name: str) -> tuple[int, int]:
        """How many hold, and how many wait."""
        text = lua("lock.lua") + lua("status.lua")
        reply = await self.connection.call("EVAL", text, 3, *keys("fairlock", name), "", 0, 0, 0)
        assert isinstance(reply, list)
        return int(str(reply[4])), int(str(reply[5]))

    async def until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        for _ in range(LOOKS):
            if await condition():
                return
            await asyncio.sleep(0.002)
        raise AssertionError(f"never: {what}")

    async def until_counts(self, name: str, holders: int, waiters: int, what: str = "") -> None:
        async def right() -> bool:
            return await self.counts(name) == (holders, waiters)

        await self.until(f"{holders} hold and {waiters} wait for {name}; {what}", right)

    async def info(self, section: str, field: str) -> str:
        """A field of INFO. Empty: the server does not have it."""
        lines = str(await self.connection.call("INFO", section)).splitlines()
        return next((line.removeprefix(f"{field}:") for line in lines if line.startswith(f"{field}:")), "")

    async def asks_and_dies(self, name: str) -> None:
        """As a process does that ends while it waits."""
        text = lua("lock.lua") + lua("acquire.lua")
        dead = f"w{uuid.uuid4().hex[:15]}:1"
        await self.connection.call("EVAL", text, 3, *keys("fairlock", name), "", dead, int(LONG * 1000))

    async def clients(self) -> int:
        listed = await self.connection.call("CLIENT", "LIST")
        return len(str(listed).splitlines())


def name() -> str:
    return f"python:{uuid.uuid4()}"


@contextlib.asynccontextmanager
async def connected(**settings: object) -> AsyncIterator[fairlock.Client]:
    settings = {"lease": LONG, **settings}
    async with fairlock.Client(URL, **settings) as client:  # type: ignore[arg-type]
        yield client


class OnAServer(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.watch = Watch(await Connection.open(Address.of_url(URL), 60.0))

    async def asyncTearDown(self) -> None:
        self.watch.connection.close()


class Cancelled(OnAServer):
    """A task may be cancelled at any await. It leaves nothing at the server, and its client goes on."""

    async def nothing_left(self, client: fairlock.Client, lock: str, run: str) -> None:
        await self.watch.until_counts(lock, 0, 0, run)
        engine = client._connected()

        async def forgotten() -> bool:
            return not engine._requests and not engine._left

        await self.watch.until(f"the client has forgotten all: {run}", forgotten)

    async def test_an_acquire_of_a_free_lock(self) -> None:
        async with connected() as client:
            lock = client.rw_lock(name())

            async def job() -> None:
                guard = await lock.write()
                # Handed out, so it is the user's to release.
                guard._left = True
                client._connected().leave(guard._request)

            awaits = await cancelled_at_each_await(job, lambda run: self.nothing_left(client, lock.name, run))
            self.assertGreaterEqual(awaits, 1)

    async def test_an_acquire_that_waits(self) -> None:
        async with connected() as client, connected() as other:
            lock, others = client.rw_lock(name()), []

            async def job() -> None:
                others.append(asyncio.create_task(hold_until_queued()))
                await inside.wait()
                inside.clear()
                guard = await lock.write()
                await guard.release()

            inside = asyncio.Event()

            async def hold_until_queued() -> None:
                job_task = tasks[-1]
                guard = await other.rw_lock(lock.name).write()
                inside.set()
                while not job_task.done() and (await self.watch.counts(lock.name))[1] == 0:
                    await asyncio.sleep(0)
                await guard.release()

            tasks: list[asyncio.Task[object]] = []

            async def noting() -> None:
                task = asyncio.current_task()
                assert task is not None
                tasks.append(task)
                await job()

            async def then(run: str) -> None:
                await asyncio.gather(*others)
                others.clear()
                inside.clear()
                await self.nothing_left(client, lock.name, run)

            awaits = await cancelled_at_each_await(noting, then)
            self.assertGreaterEqual(awaits, 3, "the other is inside; the reply; the grant; the release")

    async def test_a_block_with_its_release(self) -> None:
        async with connected() as client:
            lock = client.rw_lock(name())

            async def job() -> None:
                async with lock.write() as guard, guard.while_held():
                    await asyncio.sleep(0)

            awaits = await cancelled_at_each_await(job, lambda run: self.nothing_left(client, lock.name, run))
            self.assertGreaterEqual(awaits, 3)

    async def test_permits_and_a_try(self) -> None:
        async with connected() as client:
            gpus = client.semaphore(name(), 4)

            async def job() -> None:
                async with gpus.permits(3):
                    guard = await gpus.permits(1).try_acquire()
                    assert guard is not None
                    async with guard:
                        assert await gpus.permits(1).try_acquire() is None

            awaits = await cancelled_at_each_await(job, lambda run: self.nothing_left(client, gpus.name, run))
            self.assertGreaterEqual(awaits, 5)

    async def test_a_named_owner_who_asks_again(self) -> None:
        async with connected() as client, connected() as other:
            lock = client.rw_lock(name()).with_owner(uuid.uuid4())
            holder = await other.rw_lock(lock.name).write()

            async def job() -> None:
                # The one before may not have left the queue yet, and one owner waits once.
                async with asyncio.timeout(None):
                    await lock.write()

            for _ in range(5):
                task = asyncio.create_task(job())
                await self.watch.until_counts(lock.name, 1, 1)
                task.cancel()
                again = asyncio.create_task(job())
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await self.watch.until_counts(lock.name, 1, 1)
                again.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await again
            await self.watch.until_counts(lock.name, 1, 0)
            await holder.release()
            await self.nothing_left(client, lock.name, "five times two")

    async def test_calls_over_a_connection_that_breaks(self) -> None:
        async with connected() as client:
            lock = client.rw_lock(name())

            async def job() -> None:
                await self.watch.connection.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                async with lock.write():
                    await self.watch.connection.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

            awaits = await cancelled_at_each_await(job, lambda run: self.nothing_left(client, lock.name, run))
            self.assertGreaterEqual(awaits, 4)

    async def test_connecting_and_closing(self) -> None:
        before = await self.watch.clients()

        async def job() -> None:
            client = fairlock.Client(URL, lease=LONG)
            try:
                await client.connect()
                await client.rw_lock(self.id()).write()
            finally:
                await client.close()

        async def then(run: str) -> None:
            async def gone() -> bool:
                return await self.watch.clients() == before

            await self.watch.until(f"no connection is left: {run}", gone)
            # A cancelled close() leaves its holds to their leases.
            await self.watch.connection.call("DEL", *keys("fairlock", self.id()))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            awaits = await cancelled_at_each_await(job, then)
        self.assertGreaterEqual(awaits, 5)


class Guards(OnAServer):
    async def test_a_block_is_cancelled_when_the_lock_is_lost(self) -> None:
        async with connected() as client:
            lock = client.rw_lock(name())
            with self.assertRaises(fairlock.LostError) as lost:
                async with lock.write() as guard:
                    async with guard.while_held():
                        await self.watch.connection.call("DEL", *keys("fairlock", lock.name))
                        # The next renewal learns of it.
                        guard._request.due = 0.0
                        client._connected()._kick.notify()
                        await asyncio.Event().wait()
            self.assertIs(lost.exception.reason, fairlock.LostReason.UNKNOWN_TO_SERVER)
            task = asyncio.current_task()
            assert task is not None
            self.assertEqual(task.cancelling(), 0)
            self.assertFalse(guard.is_held())
            self.assertIs(await guard.lost(), fairlock.LostReason.UNKNOWN_TO_SERVER)

    async def test_a_block_that_never_awaits_learns_of_the_loss_at_its_end(self) -> None:
        async with connected() as client:
            guard = await client.rw_lock(name()).write()
            with self.assertRaises(fairlock.LostError):
                async with guard.while_held():
                    guard._request.proven = 0.0  # as if the lease had run out meanwhile
            with self.assertRaises(fairlock.LostError):
                await guard.release()
            await self.watch.until_counts(guard.name, 0, 0, "a lost hold is released all the same")

    async def test_a_cancellation_from_outside_is_not_taken_for_a_loss(self) -> None:
        async with connected() as client:
            lock = client.rw_lock(name())
            with self.assertRaises(TimeoutError):
                async with asyncio.timeout(0.05):
                    async with lock.write() as guard, guard.while_held():
                        await asyncio.Event().wait()
            await self.watch.until_counts(lock.name, 0, 0)

    async def test_the_error_of_a_block_hides_the_loss(self) -> None:
        async with connected() as client:
            with self.assertRaises(KeyError):
                async with client.rw_lock(name()).write() as guard:
                    guard._request.proven = 0.0
                    raise KeyError

    async def test_a_second_release_is_no_loss(self) -> None:
        async with connected() as client:
            guard = await client.rw_lock(name()).write()
            await guard.release()
            await guard.release()
            # A release whose task was cancelled goes on in the background.
            guard = await client.rw_lock(name()).write()
            task = asyncio.create_task(guard.release())
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await guard.release()
            await self.watch.until_counts(guard.name, 0, 0)
            # A hold that was lost stays lost.
            guard = await client.rw_lock(name()).write()
            guard._request.proven = 0.0
            for _ in range(2):
                with self.assertRaises(fairlock.LostError):
                    await guard.release()

    async def test_a_block_does_not_begin_after_the_release(self) -> None:
        async with connected() as client:
            guard = await client.rw_lock(name()).write()
            await guard.release()
            with self.assertRaisesRegex(RuntimeError, "was released"):
                async with guard.while_held():
                    pass

    async def test_an_acquisition_is_for_one_block_at_a_time(self) -> None:
        async with connected() as client, connected() as other:
            lock = client.rw_lock(name())
            acquire = lock.read()
            holder = await other.rw_lock(lock.name).write()
            inside, leave = asyncio.Event(), asyncio.Event()

            async def block() -> bool:
                async with acquire as guard:
                    inside.set()
                    await leave.wait()
                    return guard.is_held()

            first = asyncio.create_task(block())
            await self.watch.until_counts(lock.name, 1, 1)
            second = asyncio.create_task(block())

            async def refused_or_queued() -> bool:
                return second.done() or await self.watch.counts(lock.name) == (1, 2)

            await self.watch.until("the second block is refused", refused_or_queued)
            await holder.release()
            await inside.wait()
            with self.assertRaises(RuntimeError):
                leave.set()
                await second
            self.assertTrue(await first)
            await self.watch.until_counts(lock.name, 0, 0)
            # After a block, and after one that did not begin, the acquisition is free again.
            async with acquire:
                pass
            async with other.rw_lock(lock.name).write():
                waiter = asyncio.create_task(block())
                await self.watch.until_counts(lock.name, 1, 1)
                waiter.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await waiter
            async with acquire as guard:
                self.assertTrue(guard.is_held())

    async def test_a_dropped_guard_is_released_with_a_warning(self) -> None:
        async with connected() as client:
            lock = client.rw_lock(name())
            with self.assertWarns(ResourceWarning):
                await lock.write()
                gc.collect()
            await self.watch.until_counts(lock.name, 0, 0)

    async def test_a_dropped_guard_is_released_also_where_a_warning_is_an_error(self) -> None:
        async with connected() as client:
            lock = client.rw_lock(name())
            with warnings.catch_warnings(), mock.patch.object(sys, "unraisablehook") as told:
                warnings.simplefilter("error", ResourceWarning)
                await lock.write()
                gc.collect()
            told.assert_called_once()
            await self.watch.until_counts(lock.name, 0, 0)

    async def test_renewals_keep_a_hold_beyond_its_lease(self) -> None:
        # On a busy machine a short lease ends before its renewal.
        for lease in (0.3, 1.0, 3.0, 10.0):
            async with connected(lease=lease) as client:
                guard = await client.rw_lock(name()).write()
                first = guard._request.proven

                async def renewed_thrice_or_lost(first: float = first, lease: float = lease) -> bool:
                    return guard._request.proven > first + 3 * lease or not guard.is_held()

                await self.watch.until("a proof of three more leases", renewed_thrice_or_lost)
                if guard.is_held():
                    await guard.release()
                    return
        self.fail("no lease was renewed three times")

    async def test_closing_releases_and_tells_those_who_wait(self) -> None:
        async with connected() as other:
            lock = name()
            client = await fairlock.Client(URL, lease=LONG).connect()
            guard = await client.rw_lock(lock).write()
            waiter = asyncio.create_task(client.rw_lock(lock).write()._acquire())
            await self.watch.until_counts(lock, 1, 1)
            await client.close()
            with self.assertRaises(fairlock.ClosedError):
                await waiter
            with self.assertRaises(fairlock.LostError):
                await guard.release()
            self.assertEqual(await self.watch.counts(lock), (0, 0))
            with self.assertRaises(fairlock.ClosedError):
                await client.rw_lock(lock).write()
            async with other.rw_lock(lock).write():
                pass


class Refusals(OnAServer):
    async def test_bad_input_says_what_to_do(self) -> None:
        for arguments in (
            {"url": "http://localhost"},
            {"url": "redis://localhost:x"},
            {"url": "redis://localhost/x"},
            {"url": "redis://:12/s3cret@localhost"},
            {"url": "redis://:12?s3cret@localhost"},
            {"url": "redis://:12#s3cret@localhost"},
            {"url": "redis://:s3cret/12@localhost"},
            {"url": "redis://app:12/0?s3cret@localhost"},
            {"url": "unix:///tmp/a?db=s3cret"},
            {"url": URL, "lease": 0.05},
            {"url": URL, "prefix": "a{b"},
            {"url": URL, "label": "a b"},
            {"url": URL, "quarantine": -1},
        ):
            with self.assertRaises(fairlock.InvalidInputError) as refused:
                fairlock.Client(**arguments)  # type: ignore[arg-type]
            self.assertRegex(str(refused.exception), "refused: .*(must|may)")
            shown = "".join(traceback.format_exception(refused.exception, limit=0))
            self.assertNotIn("s3cret", shown)
        async with connected() as client:
            for bad in ("", "x" * 1025, "\ud800"):
                with self.assertRaises(fairlock.InvalidInputError):
                    client.rw_lock(bad)
            for permits in (0, 5):
                with self.assertRaises(fairlock.InvalidInputError):
                    client.semaphore("s", 4).permits(permits)
            with self.assertRaises(fairlock.InvalidInputError):
                client.semaphore("s", 0)
            with self.assertRaises(fairlock.InvalidInputError):
                client.rw_lock("a").with_owner(uuid.UUID(int=0))

    async def test_what_the_server_refuses(self) -> None:
        async with connected() as client:
            lock = client.rw_lock(name())
            with self.assertRaises(fairlock.PolicyMismatchError):
                async with lock.write():
                    await client.rw_lock(lock.name, policy=fairlock.Policy.WRITERS_FIRST).read()
            async with lock.write():
                with self.assertRaises(fairlock.QueueFullError):
                    await lock.write(max_queue=0)

    async def test_a_named_owner_reenters_and_waits_once(self) -> None:
        async with connected() as client, connected() as other:
            lock = client.rw_lock(name()).with_owner(uuid.uuid4())
            async with lock.write(), lock.write(), lock.read(), lock.write():
                pass
            # Asked at the same time.
            for guard in await asyncio.gather(*(lock.write()._acquire() for _ in range(5))):
                await guard.release()
            async with lock.read(), lock.read():
                with self.assertRaises(fairlock.OwnerReadsError):
                    await lock.write()
            async with other.rw_lock(lock.name).write():
                waiter = asyncio.create_task(lock.write()._acquire())
                await self.watch.until_counts(lock.name, 1, 1)
                with self.assertRaises(fairlock.OwnerWaitingError):
                    await lock.read()
            await (await waiter).release()

    async def test_an_error_that_does_not_end_by_itself_ends_the_wait(self) -> None:
        async with connected() as client, connected() as other:
            lock = client.rw_lock(name())
            holder = await other.rw_lock(lock.name).write()
            waiters = [asyncio.create_task(lock.read()._acquire()) for _ in range(3)]
            await self.watch.until_counts(lock.name, 1, 3)
            (state, *_) = keys("fairlock", lock.name)
            await self.watch.connection.call("RENAME", state, f"{state}:aside")
            await self.watch.connection.call("SET", state, "another program's")
            engine = client._connected()
            for request in engine._requests.values():
                request.due = 0.0
            engine._kick.notify()

            async def ended() -> bool:
                return all(waiter.done() for waiter in waiters)

            await self.watch.until("the waits end", ended)
            for waiter in waiters:
                with self.assertRaises(fairlock.ServerError) as refused:
                    await waiter
                self.assertEqual(refused.exception.code, "WRONGTYPE")
            self.assertTrue(holder.is_held(), "a hold lasts for as long as it is proven")
            await self.watch.connection.call("RENAME", f"{state}:aside", state)
            await self.watch.until_counts(lock.name, 1, 0, "the waiters are released")
            await holder.release()

    async def test_closing_releases_what_it_can(self) -> None:
        client = await fairlock.Client(URL, lease=LONG).connect()
        locks = [client.rw_lock(name()) for _ in range(3)]
        for lock in locks:
            (await lock.write())._left = True
        broken, *others = locks
        await self.watch.connection.call("SET", keys("fairlock", broken.name).state, "another program's")
        introduction = f"fairlock:client:{client._connected().id}"
        with self.assertLogs("fairlock", "WARNING") as logged:
            await client.close()
        for lock in others:
            self.assertEqual(await self.watch.counts(lock.name), (0, 0))
        self.assertEqual(await self.watch.connection.call("EXISTS", introduction), 0)
        self.assertIn("WRONGTYPE", "".join(logged.output))
        await self.watch.connection.call("DEL", *keys("fairlock", broken.name))

    async def test_a_release_ends_with_its_client(self) -> None:
        client = await fairlock.Client(URL, lease=LONG).connect()
        guard = await client.rw_lock(name()).write()

        async def gone(*words: object, **about: object) -> object:
            raise Disconnected("no reply")

        with mock.patch.object(client._connected(), "_script", gone):
            release = asyncio.create_task(guard.release())
            await asyncio.sleep(0)
            await client.close()
            with self.assertRaises(fairlock.UnavailableError):
                await asyncio.wait_for(release, 60)

    async def test_a_release_without_a_confirmation_is_no_error_of_a_block_that_was_done(self) -> None:
        for error, expected in (
            (fairlock.UnavailableError("released", "no reply"), contextlib.nullcontext()),
            (fairlock.LostError("a", fairlock.LostReason.LEASE_EXPIRED), self.assertRaises(fairlock.LostError)),
        ):
            async with connected() as client:
                with mock.patch.object(client._connected(), "release", side_effect=error), expected:
                    async with client.rw_lock(name()).write():
                        pass

    async def test_no_error_has_the_password(self) -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"s3cret\r\n")
            writer.write(b"+PONG\r\n-ERR unknown command 'AUTH', with args beginning with: 's3cret' \r\n")
            await writer.drain()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        url = f"redis://:s3cret@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with self.assertRaises(fairlock.ServerError) as refused:
            await fairlock.Client(url).connect()
        server.close()
        self.assertIn("unknown command 'AUTH'", str(refused.exception))
        self.assertNotIn("s3cret", "".join(traceback.format_exception(refused.exception)))
        self.assertNotIn("s3cret", repr(Address.of_url(url)))

    async def test_no_server(self) -> None:
        with self.assertRaises(fairlock.UnavailableError):
            await fairlock.Client("redis://127.0.0.1:1").connect()
        with self.assertRaises(fairlock.ServerError) as refused:
            await fairlock.Client(URL.replace("//", "//nobody:wrong@")).connect()
        self.assertIn("password", str(refused.exception))


class Connections(OnAServer):
    async def test_an_idle_client_keeps_its_subscription(self) -> None:
        async def pings() -> int:
            return int((await self.watch.info("commandstats", "cmdstat_ping")).removeprefix("calls=").split(",")[0])

        # A busy machine may be silent for longer than a short patience.
        for lease in (0.3, 3.0, 10.0):
            async with connected(lease=lease):
                connections = await self.watch.info("stats", "total_connections_received")
                # Two connections ping twice in the time of patience, so this is four times as long.
                enough = await pings() + 16

                async def idle_for_long(enough: int = enough) -> bool:
                    return await pings() >= enough

                await self.watch.until("pings of an idle client", idle_for_long)
                if await self.watch.info("stats", "total_connections_received") == connections:
                    return
        self.fail("each client connected again")

    async def test_a_server_that_confirms_and_hangs_up_is_asked_after_growing_pauses(self) -> None:
        asked, many = 0, asyncio.Event()

        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            await reader.readuntil(b"listen\r\n")
            # A connection begins with a PING.
            confirmed = b"*3\r\n$9\r\nsubscribe\r\n$4\r\nmine\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$6\r\nlisten\r\n:2\r\n"
            writer.write(b"+PONG\r\n-ERR unknown command\r\n" + confirmed)
            await writer.drain()
            writer.close()
            asked += 1
            if asked == 8:
                many.set()

        class Nobody:
            async def command(self, *words: object) -> list[str]:
                return []

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        subscription = Subscription(Address(port=port), 60.0, "mine", "listen", lambda _: None, lambda: None)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        running = asyncio.create_task(subscription.run(Nobody()))  # type: ignore[arg-type]
        await many.wait()
        running.cancel()
        server.close()
        # After the first attempt 10 ms, 20 ms and so on up to half a second. A busy machine takes longer.
        self.assertGreaterEqual(loop.time() - begun, 0.01 + 0.02 + 0.04 + 0.08 + 0.16 + 0.32 + 0.5 - 0.05)

    async def test_a_call_that_is_refused_for_the_moment_comes_again_after_growing_pauses(self) -> None:
        async with connected(lease=LONG) as client:
            engine = client._connected()
            script = engine._script
            refusals = 0

            async def refuse(function: str, *words: object, **about: object) -> object:
                nonlocal refusals
                if function in ("acquire", "release") and refusals < 5:
                    refusals += 1
                    raise ReplyError("LOADING Redis is loading the dataset in memory")
                return await script(function, *words, **about)  # type: ignore[arg-type]

            loop = asyncio.get_running_loop()
            with mock.patch.object(engine, "_script", refuse):
                for step in ("acquire", "release"):
                    refusals, begun = 0, loop.time()
                    if step == "acquire":
                        guard = await client.rw_lock(name()).write()
                    else:
                        await guard.release()
                    self.assertEqual(refusals, 5, step)
                    # The first sending is refused at once. A busy machine takes longer than the pauses.
                    self.assertGreaterEqual(loop.time() - begun, 0.05 + 0.1 + 0.2 + 0.4 + 0.5 - 0.05, step)

    async def test_who_waits_for_a_connection_is_not_cancelled_by_the_end_of_the_client(self) -> None:
        async with connected() as client:
            session = client._connected()._session
            await session.link()

            async def never() -> object:
                return await asyncio.Event().wait()

            with mock.patch.object(session, "_connect", never), mock.patch.object(session, "_link", None):
                waiting = asyncio.create_task(session.link())
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                session.close()
                with self.assertRaises(Disconnected):
                    await waiting

    async def test_an_eviction_before_the_reply_to_an_acquire_ends_it(self) -> None:
        async with connected() as client, connected() as other:
            lock = client.rw_lock(name())
            holder = await other.rw_lock(lock.name).write()
            engine = client._connected()
            script = engine._script
            evicted = False

            async def lose(function: str, *words: object, **about: object) -> object:
                nonlocal evicted
                answer = await script(function, *words, **about)  # type: ignore[arg-type]
                if function == "acquire" and not evicted:
                    evicted = True
                    (request,) = engine._requests.values()
                    text = lua("lock.lua") + lua("evict.lua")
                    key = keys("fairlock", lock.name)
                    await self.watch.connection.call("EVAL", text, 3, *key, "", request.name.removeprefix("w"))

                    async def told() -> bool:
                        return request.why is not None

                    await self.watch.until("the eviction is told", told)
                    raise Disconnected("the reply is lost")
                return answer

            with mock.patch.object(engine, "_script", lose), self.assertRaises(fairlock.LostError):
                await asyncio.wait_for(lock.write()._acquire(), 60)
            await holder.release()

    async def test_a_label_is_for_users_without_the_right_to_name_their_connection(self) -> None:
        user = f"nameless-{uuid.uuid4().hex}"
        await self.watch.connection.call("ACL", "SETUSER", user, "on", ">SECRET", "~*", "&*", "+@all", "-client")
        async with fairlock.Client(URL.replace("//", f"//{user}:SECRET@"), lease=LONG, label="billing") as client:
            async with client.rw_lock(name()).write():
                pass
        await self.watch.connection.call("ACL", "DELUSER", user)

    async def test_a_waiter_renews_when_its_subscription_was_made_again(self) -> None:
        async with connected() as client, connected() as other:
            lock = name()
            holder = await other.rw_lock(lock).write()
            waiter = asyncio.create_task(client.rw_lock(lock).write()._acquire())
            await self.watch.until_counts(lock, 1, 1)
            (request,) = client._connected()._requests.values()
            proven = request.proven
            await self.watch.connection.call("CLIENT", "KILL", "TYPE", "pubsub")

            async def proven_anew() -> bool:
                return request.doubted > 0 and request.proven > proven

            await self.watch.until("a proof from after the subscription", proven_anew)
            await holder.release()
            await (await waiter).release()

    async def test_a_cancelled_call_keeps_the_connection_and_the_replies_of_others(self) -> None:
        connection = await Connection.open(Address.of_url(URL), 60.0)
        calls = [asyncio.create_task(connection.call("ECHO", number)) for number in range(100)]
        await asyncio.sleep(0)
        for call in calls[::3]:
            call.cancel()
        replies = await asyncio.gather(*calls, return_exceptions=True)
        for number, reply in enumerate(replies):
            if number % 3:
                self.assertEqual(reply, str(number))
            else:
                self.assertIsInstance(reply, asyncio.CancelledError)
        self.assertFalse(connection.ended.done())
        connection.close()

    async def test_the_server_forgets_the_scripts(self) -> None:
        for functions in (True, False):
            async with connected() as client:
                link = await client._connected()._session.link()
                if not functions:
                    link.functions = None
                lock = client.rw_lock(name())
                async with lock.write():
                    self.assertIsNone(await lock.read().try_acquire())
                    # On servers before 7 there are no functions.
                    with contextlib.suppress(ReplyError):
                        await self.watch.connection.call("FUNCTION", "FLUSH")
                    await self.watch.connection.call("SCRIPT", "FLUSH")
                    self.assertIsNone(await lock.read().try_acquire())
                await self.watch.until_counts(lock.name, 0, 0)
                self.assertFalse(link.connection.ended.done())

    async def test_a_user_who_may_load_functions_and_not_call_them(self) -> None:
        user = f"loader-{uuid.uuid4().hex}"
        rules = ("on", ">SECRET", "~*", "&*", "+@all", "-fcall")
        try:
            await self.watch.connection.call("ACL", "SETUSER", user, *rules)
        except ReplyError:
            self.skipTest("servers before 7 have no functions")
        async with fairlock.Client(URL.replace("//", f"//{user}:SECRET@"), lease=LONG) as client:
            lock = client.rw_lock(name())
            async with lock.write():
                self.assertIsNone(await lock.read().try_acquire())
            await self.watch.until_counts(lock.name, 0, 0)
        await self.watch.connection.call("ACL", "DELUSER", user)

    async def test_the_rights_of_a_service_suffice(self) -> None:
        page = (ROOT / "SECURITY.md").read_text()
        rules = page.split("ACL SETUSER service on >SECRET ")[1].split("```")[0].split()
        user = f"service-{uuid.uuid4().hex}"
        await self.watch.connection.call("ACL", "SETUSER", user, "on", ">SECRET", *rules)
        async with fairlock.Client(URL.replace("//", f"//{user}:SECRET@"), lease=0.3, label="service") as client:
            async with client.rw_lock(name()).write() as guard:
                waiter = asyncio.create_task(client.rw_lock(guard.name).read()._acquire())
                first = guard._request.proven

                async def renewed() -> bool:
                    return guard._request.proven > first + 0.3

                await self.watch.until("renewals", renewed)
            await (await waiter).release()
        await self.watch.connection.call("ACL", "DELUSER", user)

    async def test_in_quarantine_no_lock_is_granted_that_looks_free(self) -> None:
        prefix = f"quarantined-{uuid.uuid4().hex}"
        async with connected(prefix=prefix, quarantine=LONG) as client:
            self.assertIsNone(await client.rw_lock("a").write().try_acquire())
        # The clients have known this server for that long.
        key = f"{prefix}:life"
        run, since = str(await self.watch.connection.call("GET", key)).split(" ")
        await self.watch.connection.call("SET", key, f"{run} {int(since) - int(LONG * 1000) - 1}")
        async with connected(prefix=prefix, quarantine=LONG) as client:
            async with client.rw_lock("b").write():
                pass

    async def test_a_try_after_a_release_does_not_forget_the_lease_that_the_release_cut(self) -> None:
        async with connected() as client, connected() as other:
            lock = client.rw_lock(name())
            guard = await lock.write()
            await self.watch.asks_and_dies(lock.name)
            waiter = asyncio.create_task(other.rw_lock(lock.name).write()._acquire())
            await self.watch.until_counts(lock.name, 1, 2)
            await guard.release()
            # The dead process holds the lock for a second. Only the client that released knows that.
            self.assertIsNone(await lock.write().try_acquire())

            async def entered() -> bool:
                return waiter.done()

            await self.watch.until("the waiter behind a dead one enters", entered)
            await (await waiter).release()


    async def test_a_look_that_the_server_refuses_is_repeated(self) -> None:
        async def refusals() -> str:
            return await self.watch.info("errorstats", "errorstat_NOPERM")

        async with connected() as client:
            lock, before = client.rw_lock(name()), await refusals()

            async def is_gone() -> bool:
                return await self.watch.connection.call("ZCARD", keys("fairlock", lock.name)[2]) == 0

            async def is_refused_or_late() -> bool:
                return await refusals() != before or await is_gone()

            # On a busy machine the look may come before it can be refused.
            while await refusals() == before:
                guard = await lock.write()
                await self.watch.asks_and_dies(lock.name)
                await guard.release()
                await self.watch.connection.call("ACL", "SETUSER", "default", "-@scripting")
                try:
                    await self.watch.until("the look is refused", is_refused_or_late)
                finally:
                    await self.watch.connection.call("ACL", "SETUSER", "default", "+@scripting")
            await self.watch.until("the dead one is gone", is_gone)


class Pages(OnAServer):
    async def test_the_first_program_of_the_readme_runs(self) -> None:
        page = (ROOT / "clients/python/README.md").read_text()
        program = page.split("```python\n")[1].split("```")[0]
        for text, ours in (("redis://127.0.0.1:6379", URL), ("sleep(5)", "sleep(0)")):
            self.assertIn(text, program)
            program = program.replace(text, ours)
        run = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        said, complained = await run.communicate()
        self.assertRegex(said.decode(), r"^inside, with fencing token \d+\n$", complained.decode())


if __name__ == "__main__":
    URL = f"redis://{sys.argv[1]}:{sys.argv[2]}"
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
