"""What can go wrong. Each message says what happened, to which lock, and what to do."""

from __future__ import annotations

from enum import Enum

from ._resp import error_code


class LostReason(Enum):
    """Why a hold, or a place in the queue, is gone."""

    LEASE_EXPIRED = "the client could not renew it within its lease"
    UNKNOWN_TO_SERVER = "the server does not know the request any more, or gave the lock to others meanwhile"
    EVICTED = "an operator evicted its owner"
    CLOSED = "its client was closed"


class FairlockError(Exception):
    """The base of all errors of this package."""


class InvalidInputError(FairlockError, ValueError):
    """An argument is refused. Nothing was sent to the server."""


class LostError(FairlockError):
    """The lock is no longer held. Others may use what it guarded: stop."""

    def __init__(self, lock: str, reason: LostReason) -> None:
        super().__init__(f"lock {lock!r} was lost: {reason.value}; stop what it guards, and acquire it again")
        self.lock = lock
        self.reason = reason


class UnavailableError(FairlockError):
    """The server did not reply in time. The client withdraws the request in the background."""

    def __init__(self, what: str, why: object) -> None:
        super().__init__(f"{what}: the server did not reply ({why}); check the server and the network, then retry")
        self.why = str(why)


class ServerError(FairlockError):
    """The server refused a call, for a reason that does not end by itself. `code` is the reply's first word."""

    def __init__(self, what: str, reply: str) -> None:
        self.code = error_code(reply)
        remedy = _REMEDIES.get(self.code, "see the server's log")
        super().__init__(f"{what}: the server replied {reply!r}; {remedy}")
        self.reply = reply


class QueueFullError(FairlockError):
    """This request did not queue. As many wait before it as `max_queue` allows."""

    def __init__(self, lock: str, waiting: int) -> None:
        super().__init__(f"{waiting} already wait for lock {lock!r}; retry later, or allow more by max_queue")
        self.lock = lock
        self.waiting = waiting


class PolicyMismatchError(FairlockError):
    """Others use the lock with another policy. All users of a lock name the same one."""

    def __init__(self, lock: str, stored: str) -> None:
        super().__init__(f"lock {lock!r} is in use {stored}; use that, or wait until nobody has used it for a minute")
        self.lock = lock


class OwnerWaitingError(FairlockError):
    """The owner already waits for this lock. Tasks that run side by side need an owner each."""

    def __init__(self, lock: str) -> None:
        super().__init__(f"this owner already waits for lock {lock!r}; give each task that waits an owner of its own")
        self.lock = lock


class OwnerReadsError(FairlockError):
    """The owner reads the lock and asks to write. This client has no upgrades."""

    def __init__(self, lock: str) -> None:
        super().__init__(f"this owner reads lock {lock!r}; release that hold, then acquire to write")
        self.lock = lock


class ClosedError(FairlockError):
    """The client is closed, or not yet connected."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; use `async with Client(url) as client:`, or `await client.connect()`")


_REMEDIES = {
    "LAYOUT": "another version of fairlock uses the lock: update the older one",
    "MOVED": "this client does not know clusters: name a server that is not part of one",
    "CROSSSLOT": "this client does not know clusters: name a server that is not part of one",
    "NOAUTH": "put the user and the password into the URL",
    "WRONGPASS": "check the user and the password in the URL",
    "NOPERM": "give the user the rights that SECURITY.md lists",
    "OOM": "the server's memory is exhausted: raise maxmemory",
    "WRONGTYPE": "another program wrote to the lock's keys: choose another prefix",
}
