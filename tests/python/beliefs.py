"""What a client believes: `python3 beliefs.py`. No server is needed."""

import time
import unittest

from fairlock._names import keys
from fairlock._request import Phase, Request


def asked(lease=10.0):
    return Request(1, "w0123456789abcde:1", keys("fairlock", "a"), lease, time.monotonic())


class AfterASubscription(unittest.TestCase):
    """While nobody heard a client's messages, scripts may have cut the leases of its waiters."""

    def setUp(self):
        self.now = time.monotonic()
        self.request = asked()
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


if __name__ == "__main__":
    unittest.main()
