"""What a client believes: `python3 beliefs.py`. No server is needed."""

import asyncio
import contextlib
import time
import unittest
import uuid
from unittest import mock

from fairlock import _clock
from fairlock._connection import Address, Connection, Disconnected
from fairlock._engine import FOLLOWED_SECONDS, Engine, Settings, Wish, _acquired, _released
from fairlock._names import is_state, keys, read_message, read_request
from fairlock._request import DISPLACED, Phase, Request
from fairlock._resp import ReplyError
from fairlock._scripts import scripts
from fairlock._session import Answer, Link, Session, is_transient
from fairlock.errors import LostError, LostReason, ServerError, UnavailableError
from fairlock.guard import Guard


def asked(lease=10.0, made=None):
    made = time.monotonic() if made is None else made
    return Request(1, "w0123456789abcde:1", keys("fairlock", "a"), lease, made)


class Suspended(unittest.IsolatedAsyncioTestCase):
    """A machine that slept: leases have run on, and the monotonic clock has stood still."""

    async def test_a_guard_believes_nothing_after_it(self):
        now = _clock.now()
        request = asked(lease=10.0)
        request.entered(now, 7)
        request.hold()
        guard = Guard(None, request, "a")
        self.assertTrue(guard.is_held())
        with mock.patch.object(_clock, "now", lambda: now + 10):
            self.assertFalse(guard.is_held())
        guard._left = True

    async def test_to_ask_a_guard_changes_nothing_so_any_thread_may_ask(self):
        now = _clock.now()
        request = asked(lease=10.0)
        request.entered(now, 7)
        request.hold()
        guard = Guard(None, request, "a")
        request.changed = mock.Mock()
        with mock.patch.object(_clock, "now", lambda: now + 10):
            self.assertFalse(guard.is_held())
        request.changed.notify.assert_not_called()
        self.assertEqual(request.phase, Phase.HELD)
        # A late reply finds the hold lost, whatever it says.
        request.stands(now + 10, now + 9, 7, 7)
        self.assertEqual((request.phase, guard.is_held()), (Phase.OVER, False))
        guard._left = True

    def test_the_clock_counts_what_the_monotonic_one_does_not(self):
        if hasattr(time, "CLOCK_BOOTTIME"):
            with mock.patch.object(time, "clock_gettime", lambda clock: {time.CLOCK_BOOTTIME: 7.0}[clock]):
                self.assertEqual(_clock.now(), 7.0)



class AskingAgain(unittest.IsolatedAsyncioTestCase):
    """The server has forgotten a request whose user had no guard yet."""

    async def tickets(self, *forgotten):
        engine = Engine(Settings(Address(), "fairlock", 10.0, "", 0.0))
        tickets = []

        async def ask(_request, _wish, ticket, _only_now):
            tickets.append(ticket)
            return True

        with mock.patch.multiple(
            engine,
            _register=mock.Mock(side_effect=[*forgotten, asked()]),
            _forget=mock.Mock(),
            _ask=ask,
            _until_owner_is_free=mock.AsyncMock(),
            _until_held=mock.AsyncMock(side_effect=[False] * len(forgotten) + [True]),
        ):
            await engine.acquire(mock.Mock())
        return tickets

    async def test_keeps_its_place_however_often_that_happens(self):
        waited, entered = asked(), asked()
        waited.queued(time.monotonic(), ticket=5, seq=5)
        entered.entered(time.monotonic(), 9)
        self.assertEqual(await self.tickets(waited, entered), [0, 5, 5])

    async def test_has_a_place_by_its_token_if_it_never_waited(self):
        entered = asked()
        entered.entered(time.monotonic(), 9)
        self.assertEqual(await self.tickets(entered), [0, 9])


class AfterASubscription(unittest.TestCase):
    """While nobody heard a client's messages, scripts may have cut the leases of its waiters."""

    def setUp(self):
        self.now = time.monotonic()
        self.request = asked(made=self.now - 1)
        self.request.queued(self.now - 1, ticket=5, seq=5)
        self.request.doubt(self.now)

    def test_a_message_is_believed_only_after_a_later_call(self):
        self.request.heard(7, self.now)
        self.assertEqual(self.request.phase, Phase.GRANTED)
        self.assertLess(self.request.proven, self.now, "renew first")
        self.request.stands(time.monotonic(), time.monotonic(), 7, 7)
        self.assertGreater(self.request.proven, self.now)

    def test_a_call_that_was_sent_before_proves_nothing_by_saying_that_it_waits(self):
        self.request.stands(self.now + 1, self.now - 0.5, -5, 3)
        self.assertLess(self.request.proven, self.now)
        self.request.stands(self.now + 1, self.now + 0.5, -5, 3)
        self.assertGreater(self.request.proven, self.now)

    def test_a_call_that_was_sent_before_proves_a_hold(self):
        self.request.stands(self.now + 1, self.now - 0.5, 7, 7)
        self.assertEqual(self.request.phase, Phase.GRANTED)
        self.assertGreater(self.request.proven, self.now)

    def test_a_hold_keeps_its_proof(self):
        self.request.stands(self.now + 1, self.now - 0.5, 7, 7)
        self.request.hold()
        proven = self.request.proven
        self.request.doubt(self.now)
        self.assertEqual(self.request.proven, proven)

    def test_a_waiter_is_due_at_once_when_its_call_was_sent_before(self):
        self.request.stands(self.now + 1, self.now - 0.5, -5, 3)
        self.assertLessEqual(self.request.due, self.now)
        self.request.stands(self.now + 1, self.now + 0.5, -5, 3)
        self.assertGreater(self.request.due, self.now + 1)
        # A later call has told more.
        self.request.stands(self.now + 1, self.now - 0.5, -5, 3)
        self.assertGreater(self.request.due, self.now + 1)

    def test_a_waiter_is_due_at_once_when_its_acquire_was_sent_before(self):
        request = asked(made=self.now - 1)
        request.doubt(self.now)
        request.queued(self.now - 0.5, ticket=5, seq=5)
        self.assertLessEqual(request.due, self.now)


class Messages(unittest.TestCase):
    """Messages come over a connection of their own."""

    def test_an_upgrade_that_ends_before_its_reply_asks_again_with_its_ticket(self):
        request = asked()
        request.heard(1, time.monotonic())
        self.assertEqual(request.phase, Phase.ASKED)
        request.queued(time.monotonic(), ticket=5, seq=5)
        self.assertEqual((request.phase, request.why, request.ticket), (Phase.OVER, DISPLACED, 5))

    def test_a_grant_after_the_end_of_an_upgrade_counts(self):
        request = asked()
        for number in (1, 7):
            request.heard(number, time.monotonic())
        request.queued(time.monotonic(), ticket=5, seq=5)
        self.assertEqual((request.phase, request.token), (Phase.GRANTED, 7))

    def test_numbers_that_no_server_sends_are_no_messages(self):
        state = "fairlock:{a}"
        self.assertIsNotNone(read_message(f"{2**53 - 1} wa:1\n{state}"))
        for digits in (17, 5000):
            self.assertIsNone(read_message(f"{'9' * digits} wa:1\n{state}"))
        self.assertEqual(read_request(f"wa:{2**62 - 1}"), ("a", 2**62 - 1))
        for digits in (20, 5000):
            self.assertIsNone(read_request(f"wa:{'9' * digits}"))


class Heard(unittest.IsolatedAsyncioTestCase):
    """What a message does that no script wrote, or that is about another lock."""

    async def asyncSetUp(self):
        self.engine = Engine(Settings(Address(), "fairlock", 10.0, "", 0.0))
        self.state = "fairlock:{a}"
        self.request = self.engine._register(Wish("a", keys("fairlock", "a"), True, None, "", 1, None))
        self.request.queued(_clock.now(), ticket=5, seq=5)

    def orphans(self, number, state):
        """The locks that the client releases after a message about a request that it has forgotten."""
        self.engine._number = 2
        self.engine._heard(f"{number} w{self.engine.id}:2\n{state}")
        return [request.lock.state for request, *_ in self.engine._left.values()]

    async def test_a_grant_to_an_orphan_is_released_on_its_lock(self):
        self.assertEqual(self.orphans(7, self.state), [self.state])

    async def test_a_message_leads_to_no_key_outside_of_the_prefix(self):
        others = ("sessions", "other:{a}", "fairlock.q:{a}", "fairlock:{a}:q", "fairlock:{a}}", "fairlock:client:a", "", "}")
        for state in others:
            self.assertEqual(self.orphans(7, state), [], state)
        for lock in ("a", "{", "a}b%", " \n"):
            self.assertTrue(is_state("fairlock", keys("fairlock", lock).state), lock)

    async def test_a_number_that_is_no_grant_makes_no_orphan(self):
        for number in (0, 1):
            self.assertEqual(self.orphans(number, self.state), [])

    async def test_a_message_about_another_lock_grants_nothing(self):
        self.engine._heard(f"7 {self.request.name}\nfairlock:{{b}}")
        self.assertEqual((self.request.phase, self.engine._left), (Phase.WAITING, {}))
        self.engine._heard(f"7 {self.request.name}\n{self.state}")
        self.assertEqual(self.request.phase, Phase.GRANTED)


class Orphans(unittest.IsolatedAsyncioTestCase):
    """A late copy of a cancelled acquire keeps a named owner from waiting."""

    async def test_one_that_cannot_be_released_is_met_again_after_growing_pauses(self):
        engine = Engine(Settings(Address(), "fairlock", 10.0, "", 0.0))
        engine._number, calls, pauses = 1, [], []

        async def script(name, lock, options, *args, about=None):
            calls.append(name)
            if calls.count("acquire") == 4:
                return Answer(7, _clock.now())
            if name == "acquire":
                return Answer([-2, 1, -1, 9], _clock.now())
            raise ReplyError("NOPERM this user has no permissions to run the 'fcall' command")

        async def sleep(seconds):
            pauses.append(seconds)

        wish = Wish("a", keys("fairlock", "a"), True, uuid.uuid4(), "", 1, None)
        with mock.patch.object(engine, "_script", script), mock.patch.object(asyncio, "sleep", sleep):
            self.assertIsNotNone(await engine.acquire(wish))
        self.assertEqual((calls, pauses), (["acquire", "release"] * 3 + ["acquire"], [0.05, 0.1, 0.2]))


class FollowUps(unittest.IsolatedAsyncioTestCase):
    """A script cut a lease of somebody else. The client whose call did that looks when the lease ends."""

    async def asyncSetUp(self):
        self.now = _clock.now()
        clock = mock.patch.object(_clock, "now", lambda: self.now)
        clock.start()
        self.addCleanup(clock.stop)
        self.lock = keys("fairlock", "a")
        self.engine = Engine(Settings(Address(), "fairlock", 10.0, "", 0.0))
        self.next_ms = -1
        self.calls = []

        async def script(name, lock, options, *args, about=None):
            self.calls.append((name, lock, args))
            return Answer([self.next_ms, 0], self.now)

        self.engine._session.script = script

    async def looks(self):
        """Does what is due, and returns whether that was a look at the lock."""
        self.calls.clear()
        jobs, _ = self.engine._due(self.now)
        for job in jobs:
            await job()
        return self.calls == [("renew", self.lock, ())]

    async def test_a_reply_that_tells_no_time_leaves_the_look_as_it_is_planned(self):
        for told in (_released(Answer(7, self.now), 1)[1], _acquired(Answer(0, self.now))[2]):
            self.assertIsNone(told)
            self.engine._note_next(self.lock, 900)
            self.engine._note_next(self.lock, told)
            self.assertFalse(await self.looks(), "too early")
            self.now += 1
            self.assertTrue(await self.looks())
            self.assertFalse(await self.looks(), "once")

    async def test_a_release_of_what_is_unknown_is_perhaps_a_copy(self):
        self.engine._note_next(self.lock, _released(Answer(0, self.now), 1)[1])
        self.assertFalse(await self.looks(), "too early")
        self.now += 1
        self.assertTrue(await self.looks())

    async def test_a_later_cut_is_followed_for_a_minute_of_its_own(self):
        self.engine._note_next(self.lock, 1000)
        self.now += FOLLOWED_SECONDS - 1
        self.engine._note_next(self.lock, 1000)
        self.now += 2
        self.next_ms = 1000
        self.assertTrue(await self.looks())
        self.now += 1
        self.assertTrue(await self.looks())

    async def test_looks_that_follow_each_other_end_after_a_minute(self):
        self.engine._note_next(self.lock, 1000)
        self.next_ms, looks = 1000, 0
        while looks <= FOLLOWED_SECONDS:
            self.now += 1
            if not await self.looks():
                return
            looks += 1
        self.fail("the looks never end")


class Releases(unittest.IsolatedAsyncioTestCase):
    """What a release says if its first attempt fails, and the server does not know the hold at the next one."""

    async def asyncSetUp(self):
        self.engine = Engine(Settings(Address(), "fairlock", 10.0, "", 0.0))
        self.request = asked(made=_clock.now())
        self.request.entered(_clock.now(), 7)
        self.request.hold()
        self.call = mock.AsyncMock()
        self.link = mock.AsyncMock(return_value=mock.Mock(quarantined_until=0.0, call=self.call))
        self.engine._session.link = self.link

    async def test_a_release_that_was_never_sent_does_not_hide_a_loss(self):
        self.link.side_effect = [Disconnected("connection refused"), self.link.return_value]
        self.call.side_effect = [Answer(0, 0.0)]
        with self.assertRaises(LostError):
            await self.engine.release(self.request, "a")

    async def test_after_one_that_was_sent_the_hold_counts_as_released(self):
        self.call.side_effect = [Disconnected("no reply"), Answer(0, 0.0)]
        await self.engine.release(self.request, "a")
        self.assertEqual(self.call.await_count, 2)

    async def test_after_the_clients_end_nothing_is_known(self):
        async def loading(*_):
            self.engine._closed = True
            raise ReplyError("LOADING Redis is loading the dataset in memory")

        self.call.side_effect = loading
        with self.assertRaises(UnavailableError):
            await self.engine.release(self.request, "a")
        self.assertEqual(self.call.await_count, 1)


class Refusing:
    """A connection whose server refuses commands. `errors`: the error reply to a command."""

    def __init__(self, **errors):
        self.errors = errors
        self.calls = []
        self.ended = asyncio.get_running_loop().create_future()

    async def call(self, command, *words):
        self.calls.append(command)
        await asyncio.sleep(0)
        if command in self.errors:
            raise ReplyError(self.errors[command])
        return 0

    def close(self):
        if not self.ended.done():
            self.ended.set_result("closed")


class Errors(unittest.IsolatedAsyncioTestCase):
    """Error replies, as servers send them."""

    # Redis 6.2 puts the error of a command into the error of its script, in two ways.
    OLD = "ERR Error running script (call to f_beef354d): @user_script:"
    OLD_READONLY = OLD + "1: @user_script: 1: -READONLY You can't write against a read only replica."
    OLD_WRONGTYPE = OLD + "89: WRONGTYPE Operation against a key holding the wrong kind of value"

    def test_the_error_of_a_script_has_the_code_of_the_command_that_failed(self):
        for text, code, transient in (
            ("READONLY You can't write against a read only replica.", "READONLY", True),
            (self.OLD_READONLY, "READONLY", True),
            (self.OLD_WRONGTYPE, "WRONGTYPE", False),
            (self.OLD + " 3: not the name of a request: r", "ERR", False),
            ("OOM command not allowed when used memory > 'maxmemory'.", "OOM", False),
            ("ERR Function not found", "ERR", False),
        ):
            error = ReplyError(text)
            self.assertEqual((error.code, is_transient(error)), (code, transient), text)
            self.assertEqual(ServerError("lock 'a'", text).code, code)

    async def script(self, connection, functions=None):
        """Calls a script over the connection: twice at the same time, and once more."""
        session = Session(Address(), "fairlock", 1.0, 0.0)
        session._link = Link(connection, scripts(True), functions, 0.0)
        for calls in (2, 1):
            await asyncio.gather(*(session.script("renew", keys("fairlock", "a"), "") for _ in range(calls)))

    async def test_a_server_that_is_no_master_any_more_is_left(self):
        for text in ("READONLY You can't write against a read only replica.", self.OLD_READONLY):
            connection = Refusing(EVAL=text)
            with self.assertRaises(ReplyError):
                await self.script(connection)
            self.assertTrue(connection.ended.done(), text)

    async def test_a_user_without_the_right_to_functions_calls_scripts_by_their_texts(self):
        for text in (
            "NOPERM this user has no permissions to run the 'fcall' command",
            "NOPERM User zz has no permissions to run the 'fcall' command",
            "ERR unknown command 'FCALL', with args beginning with: 'x'",
        ):
            connection = Refusing(FCALL=text)
            await self.script(connection, "fairlock_0")
            self.assertEqual(connection.calls, ["FCALL", "FCALL", "EVAL", "EVAL", "EVALSHA"], text)
        # Without the right to a key there is none by text either.
        connection = Refusing(FCALL="NOPERM this user has no permissions to access one of the keys used as arguments")
        with self.assertRaises(ReplyError):
            await self.script(connection, "fairlock_0")
        self.assertNotIn("EVAL", connection.calls)


class Proofs(unittest.IsolatedAsyncioTestCase):
    """PROTOCOL.md, Believing: what a reply proves, and which reply ends a hold."""

    def held(self, name, token=7):
        request = Request(1, name, keys("fairlock", "a"), 10.0, 100.0)
        request.entered(100.0, token)
        request.hold()
        return request

    def test_a_proof_ends_a_margin_before_the_lease(self):
        for lease in (10.0, 0.1):
            request = asked(lease, made=100.0)
            request.entered(100.0, 7)
            self.assertEqual(request.proven, 100.0 + lease - max(lease / 50, 0.002))

    async def test_a_proof_counts_from_the_sending(self):
        now = [100.0]

        class Slow(Refusing):
            async def call(self, command, *words):
                now[0] += 5
                return await super().call(command, *words)

        with mock.patch.object(_clock, "now", lambda: now[0]):
            for functions in ("fairlock_0", None, None):
                sent = now[0]
                link = Link(Slow(), scripts(True), functions, 0.0)
                link.seen.update(("renew",) if functions is None and sent > 105 else ())
                self.assertEqual((await link.call("renew", ())).sent, sent)

    def test_a_hold_that_was_interrupted_is_lost(self):
        w, r = "w0123456789abcde:1", "r0123456789abcde:1"
        for name, standing, first, lost in ((w, 7, 9, False), (w, 8, 7, True), (r, 9, 7, False), (r, 9, 8, True)):
            request = self.held(name)
            request.stands(101.0, 101.0, standing, first)
            self.assertEqual(request.phase is Phase.OVER, lost, (name, standing, first))

    def test_a_hold_that_waits_is_lost(self):
        # The counter has passed its token; or the call was sent after the grant, at a server that went back.
        for sent, seq, lost in ((99.0, 7, True), (101.0, 5, True), (99.0, 5, False)):
            request = self.held("w0123456789abcde:1")
            request.stands(101.0, sent, -seq, 3)
            self.assertEqual(request.phase is Phase.OVER, lost, (sent, seq))

    def test_an_eviction_ends_a_hold(self):
        request = self.held("w0123456789abcde:1")
        request.heard(0, 101.0)
        self.assertIs(request.why, LostReason.EVICTED)

    def test_a_waiter_that_the_server_does_not_know_asks_again(self):
        request = asked(made=100.0)
        request.queued(100.0, ticket=5, seq=5)
        request.stands(101.0, 101.0, -1, 3)
        self.assertEqual((request.phase, request.why, request.ticket), (Phase.OVER, DISPLACED, 5))

    def test_a_grant_of_a_former_life_does_not_count(self):
        request = asked(made=100.0)
        request.queued(100.0, ticket=5, seq=9)
        request.heard(9, 101.0)
        self.assertEqual(request.phase, Phase.WAITING)

    async def test_a_release_that_tells_a_later_number_tells_a_loss(self):
        engine = Engine(Settings(Address(), "fairlock", 10.0, "", 0.0))
        for told, lost in ((7, False), (8, True), (1, True), (0, True)):
            request = asked(made=_clock.now())
            request.entered(_clock.now(), 7)
            request.hold()
            with mock.patch.object(engine, "_script", mock.AsyncMock(return_value=Answer(told, 0.0))):
                with self.assertRaises(LostError) if lost else contextlib.nullcontext():
                    await engine.release(request, "a")

    async def test_who_hears_of_a_listener_says_so_with_each_script(self):
        engine = Engine(Settings(Address(), "fairlock", 10.0, "", 0.0))
        engine._session.script = mock.AsyncMock()
        lock = keys("fairlock", "a")
        for subject, options in (("fairlock:{b}", "w"), (lock.state, "we"), ("*", "we")):
            engine._subscription._audience.clear()
            engine._subscription._take("fairlock:listen", subject)
            await engine._script("acquire", lock, "w")
            self.assertEqual(engine._session.script.call_args.args[2], options, subject)

    async def test_a_connection_without_a_sign_of_life_ends(self):
        async def silent(reader, writer):
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        connection = await Connection.open(Address(port=server.sockets[0].getsockname()[1]), 0.1)
        with self.assertRaises(Disconnected):
            await asyncio.wait_for(connection.call("ECHO", "a"), 60)
        server.close()

    async def test_a_reply_about_other_requests_is_malformed(self):
        engine = Engine(Settings(Address(), "fairlock", 10.0, "", 0.0))
        for reply in ([5, 1, 2], [5], "OK"):
            request = asked(made=_clock.now())
            request.entered(_clock.now(), 7)
            request.hold()
            with mock.patch.object(engine, "_script", mock.AsyncMock(return_value=Answer(reply, 0.0))):
                with self.assertRaises(ServerError, msg=reply):
                    await engine.release(request, "a")

    async def test_a_look_that_falls_together_with_a_renewal_of_a_hold_is_planned_again(self):
        now = [100.0]
        with mock.patch.object(_clock, "now", lambda: now[0]):
            engine = Engine(Settings(Address(), "fairlock", 600.0, "", 0.0))
            lock = keys("fairlock", "a")

            async def script(name, lock, options, *args, about=None):
                return Answer([200, 5] + [5] * (len(args) // 2), now[0])

            engine._session.script = script
            wish = Wish("a", lock, False, None, "", 1, None)
            held, waiting = engine._register(wish), engine._register(wish)
            held.entered(now[0], 5)
            held.hold()
            now[0] += 10
            waiting.queued(now[0], 6, 6)
            now[0] = held.due
            engine._look(lock, 0)
            for job in engine._due(now[0])[0]:
                await job()
            self.assertIn(lock, engine._looks, "a dead holder may end in 200 ms")

    async def test_the_watchdog_goes_on_after_a_call_that_failed_as_nobody_foresaw(self):
        engine = Engine(Settings(Address(), "fairlock", 10.0, "", 0.0))
        done = asyncio.Event()

        async def broken():
            raise RuntimeError("can't start new thread")

        async def works():
            done.set()

        rounds = iter((([broken], 0.0), ([works], 0.0)))
        with mock.patch.object(engine, "_due", lambda now: next(rounds, ([], now + 60))):
            with self.assertLogs("fairlock", "ERROR"):
                keeping = asyncio.create_task(engine._keep())
                await asyncio.wait_for(done.wait(), 60)
        keeping.cancel()


if __name__ == "__main__":
    unittest.main()
