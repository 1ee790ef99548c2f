"""A fair read/write lock over Redis and Valkey, for asyncio.

Requests enter in the order in which they arrive, and the server hands the lock over: nobody polls. The Rust crate
`fairlock` stands in the same queues: both follow PROTOCOL.md.

    async with fairlock.Client("redis://127.0.0.1:6379") as client:
        async with client.rw_lock("invoice:42").write() as guard:
            print("inside, with fencing token", guard.fencing_token)
"""

from .client import Client
from .errors import (
    ClosedError,
    FairlockError,
    InvalidInputError,
    LostError,
    LostReason,
    OwnerReadsError,
    OwnerWaitingError,
    PolicyMismatchError,
    QueueFullError,
    ServerError,
    UnavailableError,
)
from .guard import Guard, WhileHeld
from .locks import Acquire, Policy, RwLock, Semaphore

__all__ = [
    "Acquire",
    "Client",
    "ClosedError",
    "FairlockError",
    "Guard",
    "InvalidInputError",
    "LostError",
    "LostReason",
    "OwnerReadsError",
    "OwnerWaitingError",
    "Policy",
    "PolicyMismatchError",
    "QueueFullError",
    "RwLock",
    "Semaphore",
    "ServerError",
    "UnavailableError",
    "WhileHeld",
]
