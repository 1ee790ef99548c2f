"""How the client of clients/python reads a URL and connects: `python3 connecting.py HOST PORT`."""

import asyncio
import sys
import traceback
import unittest
import uuid

import fairlock
from fairlock._connection import Address, Connection

try:
    import uvloop
except ImportError:
    uvloop = None

URL = ""


class Loops(unittest.TestCase):
    """Event loops whose transports inherit from nothing of asyncio, as those of uvloop."""

    def test_a_transport_is_what_has_its_methods(self) -> None:
        written: list[bytes] = []

        class Foreign:
            def write(self, data: bytes) -> None:
                written.append(data)

            def abort(self) -> None:
                pass

        async def call() -> object:
            connection = Connection(60.0)
            connection.connection_made(Foreign())  # type: ignore[arg-type]
            connection.data_received(b"+PONG\r\n")
            reply = connection.send("ECHO", "a")
            connection.data_received(b"$1\r\na\r\n")
            connection.close()
            return await reply

        self.assertEqual(asyncio.run(call()), "a")
        self.assertIn(b"ECHO", written[-1])

    @unittest.skipIf(uvloop is None, "uvloop is not installed")
    def test_two_requests_enter_one_after_the_other_under_uvloop(self) -> None:
        async def hand_over() -> bool:
            async with fairlock.Client(URL, lease=600.0) as client:
                lock = client.rw_lock(self.id())
                guard = await lock.write()
                waiter = asyncio.create_task(lock.write()._acquire())
                await asyncio.sleep(0)
                await guard.release()
                next_one = await waiter
                entered = next_one.fencing_token > guard.fencing_token
                await next_one.release()
                return entered

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            self.assertTrue(runner.run(hand_over()))


class Urls(unittest.TestCase):
    """No message repeats a part of the URL, because that part may be a password."""

    def refused(self, url: str, *words: str) -> None:
        with self.assertRaises(fairlock.InvalidInputError, msg=url) as refused:
            fairlock.Client(url)
        shown = "".join(traceback.format_exception(refused.exception, limit=0))
        self.assertNotIn("s3cret", shown)
        for word in ("URL is refused: ", *words):
            self.assertIn(word, shown, url)

    def test_an_option_or_a_fragment_that_has_no_meaning_is_refused(self) -> None:
        for url in (
            "redis://localhost?db=1",
            "redis://localhost/1?protocol=3",
            "redis://localhost?s3cret",
            "redis://localhost#s3cret",
            "rediss://localhost#insecure",
            "unix:///tmp/a?db=1&password=s3cret",
            "unix:///tmp/a#1",
        ):
            self.refused(url, "/DATABASE", "%3F")
        for url in ("redis://localhost/?", "redis://localhost#", "unix:///tmp/a?db=1"):
            fairlock.Client(url)

    def test_a_url_that_no_connection_can_use_is_refused_before_connecting(self) -> None:
        for url in (
            "redis://a..b",
            f"redis://{'a' * 64}",
            "redis://a\0b",
            "redis://:s3cret\ud800@a",
            "redis://:s3cret%FF@a",
            "unix:///tmp/s3cret\0",
            "unix://tmp/socket",
        ):
            self.refused(url, "redis://[USER:PASSWORD@]HOST")

    def test_a_login_without_a_colon_may_be_a_password_and_is_refused(self) -> None:
        for url in ("redis://s3cret@localhost", "rediss://s3cret@localhost/1", "unix://s3cret@/tmp/a"):
            self.refused(url, "USER:PASSWORD@ or :PASSWORD@")
        for url, login in (
            ("redis://app:@localhost", ("app", "")),
            ("redis://:@localhost", (None, None)),
            ("redis://@localhost", (None, None)),
            ("redis://:p%40ss@localhost", (None, "p@ss")),
            ("unix:///tmp/a?user=app&pass=p%40ss", ("app", "p@ss")),
        ):
            address = Address.of_url(url)
            self.assertEqual((address.user, address.password), login, url)

    def test_port_0_is_not_the_default_port(self) -> None:
        self.assertEqual(Address.of_url("redis://localhost:0").port, 0)


class Rights(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.server = await Connection.open(Address.of_url(URL), 60.0)
        self.user = f"user-{uuid.uuid4().hex}"

    async def asyncTearDown(self) -> None:
        await self.server.call("ACL", "DELUSER", self.user)
        self.server.close()

    async def test_a_user_without_a_password_logs_in_as_itself(self) -> None:
        await self.server.call("ACL", "SETUSER", self.user, "on", "nopass", "~*", "&*", "+@all")
        async with fairlock.Client(URL.replace("//", f"//{self.user}:@")) as client:
            me = await client._connected()._session.command("ACL", "WHOAMI")
        self.assertEqual(me, self.user)

    async def test_a_script_that_exceeds_its_users_rights_says_which_rights_there_are(self) -> None:
        # Redis and Valkey say this in different words, and both call it ERR.
        await self.server.call("ACL", "SETUSER", self.user, "on", ">SECRET", "~*", "&*", "+@all", "-hset")
        async with fairlock.Client(URL.replace("//", f"//{self.user}:SECRET@")) as client:
            with self.assertRaises(fairlock.ServerError) as refused:
                await client.rw_lock("a").write()
        self.assertEqual(refused.exception.code, "NOPERM")
        self.assertIn("SECURITY.md", str(refused.exception))


if __name__ == "__main__":
    URL = f"redis://{sys.argv[1]}:{sys.argv[2]}"
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
