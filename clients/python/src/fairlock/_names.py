"""Names, keys and messages, as PROTOCOL.md has them. Nothing here does I/O or reads a clock."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from .errors import InvalidInputError

MOST_PERMITS = 10**9
LEAST_LEASE = 0.1
MOST_LEASE = 365 * 24 * 3600.0
# Tickets and tokens are less than 2^53, and the numbers of requests are less than 2^62. Python refuses to read a number
# of several thousand digits.
TOKEN_DIGITS = 16
REQUEST_DIGITS = 19


class LockKeys(NamedTuple):
    """The three keys of a lock, in the order in which each script takes them."""

    state: str
    queue: str
    leases: str

    @staticmethod
    def of_state(state: str) -> LockKeys:
        return LockKeys(state, state + ":q", state + ":l")


def keys(prefix: str, name: str) -> LockKeys:
    """The keys of a lock. Raises InvalidInputError for a name that no client may use."""
    if not 1 <= len(_utf8("lock name", name)) <= 1024:
        raise InvalidInputError(f"lock name {name[:40]!r} is refused: it must have 1 to 1024 bytes of UTF-8")
    return LockKeys.of_state("%s:{%s}" % (prefix, name.replace("%", "%25").replace("}", "%7D")))


def is_state(prefix: str, key: str) -> bool:
    """Whether a lock's state may lie under this key."""
    # A lock's name has no brace there: `keys` escapes it.
    return key.startswith(f"{prefix}:{{") and key.find("}") == len(key) - 1


def checked_prefix(prefix: str) -> str:
    if not 1 <= len(_utf8("prefix", prefix)) <= 128 or "{" in prefix or "}" in prefix:
        raise InvalidInputError(f"prefix {prefix[:40]!r} is refused: it must have 1 to 128 bytes and no braces")
    return prefix


def checked_label(label: str) -> str:
    if len(label) > 128 or not all("!" <= character <= "~" for character in label):
        remedy = "it may have 128 characters, printable ASCII without spaces"
        raise InvalidInputError(f"label {label[:40]!r} is refused: {remedy}")
    return label


def checked_seconds(what: str, seconds: float) -> float:
    if not LEAST_LEASE <= seconds <= MOST_LEASE:
        raise InvalidInputError(f"{what} of {seconds!r} s is refused: it must be 0.1 s to a year")
    return float(seconds)


def owner_name(owner: uuid.UUID) -> str:
    """The owner's name in a request's name."""
    # Version 8 stands for owners without a name, and the scripts grant to the nil UUID in a quarantine.
    if owner.version == 8 or owner.int == 0:
        raise InvalidInputError(f"owner {owner} is refused: it must not be nil or of version 8; uuid.uuid4() makes one")
    return owner.hex


def _utf8(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{what} {text[:40]!r} is refused: it is not UTF-8") from error


class Grant(NamedTuple):
    """A request of a message, and the number that the message has for it: a token, or 0 or 1."""

    request: str
    number: int


def read_message(payload: str) -> tuple[list[Grant], str] | None:
    """The grants of a message, and the state key of their lock. None: no script of fairlock wrote it."""
    groups, line_feed, key = payload.partition("\n")
    number: int | None = None
    grants: list[Grant] = []
    for word in groups.split(" "):
        if word.isascii() and word.isdigit():
            if len(word) > TOKEN_DIGITS:
                return None
            number = int(word)
        elif number is None or not word:
            return None
        else:
            grants.append(Grant(word, number))
    return (grants, key) if line_feed and grants else None


def read_request(name: str) -> tuple[str, int] | None:
    """The client and the number in a request's name. None: it is no request's name."""
    client, _, rest = name[1:].partition(":")
    number = rest.partition(":")[0]
    if name[:1] not in ("r", "w") or not client or not (number.isascii() and number.isdigit()):
        return None
    if len(number) > REQUEST_DIGITS:
        return None
    return client, int(number)
