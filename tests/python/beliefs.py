"""What a client believes: `python3 beliefs.py`. No server is needed."""

import time
import unittest
from unittest import mock

from fairlock import _clock
from fairlock._connection import Address
from fairlock._engine import FOLLOWED_SECONDS, Engine, Settings, _acquired, _released
from fairlock._names import keys, read_message, read_request
from fairlock._request import DISPLACED, Phase, Request
from fairlock._session import Answer
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

    def test_the_clock_counts_what_the_monotonic_one_does_not(self):
        if hasattr(time, "CLOCK_BOOTTIME"):
            before = time.clock_gettime(time.CLOCK_BOOTTIME)
            self.assertLessEqual(before, _clock.now())
            self.assertLessEqual(_clock.now(), time.clock_gettime(time.CLOCK_BOOTTIME))



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
        for told in (_released(Answer(7, self.now))[1], _acquired(Answer(0, self.now))[2]):
            self.assertIsNone(told)
            self.engine._note_next(self.lock, 900)
            self.engine._note_next(self.lock, told)
            self.assertFalse(await self.looks(), "too early")
            self.now += 1
            self.assertTrue(await self.looks())
            self.assertFalse(await self.looks(), "once")

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


if __name__ == "__main__":
    unittest.main()
