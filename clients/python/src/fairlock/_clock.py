"""The clock of leases and proofs. On Linux it goes on while the machine is suspended, as the leases at the server do."""

import time


def _suspended_too() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


now = _suspended_too if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
