"""RESP 2, the protocol of Redis and Valkey, as far as a lock needs it. Nothing here does I/O."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TypeAlias

Word: TypeAlias = str | int

# A server that sends more is no server of ours, or hostile.
MOST_BYTES = 64 * 1024 * 1024
MOST_ITEMS = 1_000_000
MOST_DEPTH = 8
MOST_LINE = 64 * 1024


# Redis 6.2 puts the error of a command into the error of the script that called it.
_OF_A_COMMAND = re.compile(r"ERR Error running script .*@user_script: ?\d+: -?([A-Z]{2,}) ")
# When a script exceeds its user's rights, Redis has the first text and Valkey the second one, with the code ERR.
_BEYOND_RIGHTS = ("The user executing the script", "ACL failure in script")


def error_code(text: str) -> str:
    """The first word of an error reply, such as NOSCRIPT. For an error in a script: that of the command that failed."""
    if any(words in text for words in _BEYOND_RIGHTS):
        return "NOPERM"
    found = _OF_A_COMMAND.match(text)
    return found[1] if found else text.split(" ", 1)[0]


class ReplyError(Exception):
    """An error reply. `code` is its first word, such as NOSCRIPT."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.code = error_code(text)


class MalformedError(Exception):
    """What came is not RESP 2, or not what a script of fairlock replies."""


Reply: TypeAlias = "str | int | None | ReplyError | list[Reply]"


def encoded(words: tuple[Word, ...]) -> bytes:
    """A command as it is sent."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        body = str(word).encode("utf-8", "surrogateescape")
        parts.append(b"$%d\r\n%s\r\n" % (len(body), body))
    return b"".join(parts)


class Parser:
    """Takes bytes as they come and gives the replies that are complete.

    The parser is a generator that stops wherever bytes are missing, so no byte is read twice.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._replies: list[Reply] = []
        self._steps = self._parse()
        next(self._steps)

    def feed(self, data: bytes) -> list[Reply]:
        """The replies that ended in `data`. Raises MalformedError; then nothing more can be read."""
        self._buffer += data
        next(self._steps)
        replies, self._replies = self._replies, []
        return replies

    def _parse(self) -> Generator[None, None, None]:
        while True:
            reply = yield from self._reply(0)
            self._replies.append(reply)

    def _line(self) -> Generator[None, None, bytes]:
        searched = 0
        while (end := self._buffer.find(b"\r\n", searched)) < 0:
            searched = max(len(self._buffer) - 1, 0)
            if searched > MOST_LINE:
                raise MalformedError("a line of a reply is too long")
            yield
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _reply(self, depth: int) -> Generator[None, None, Reply]:
        line = yield from self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode("utf-8", "surrogateescape")
        if kind == b"-":
            return ReplyError(rest.decode("utf-8", "surrogateescape"))
        if kind == b":":
            return _number(rest)
        if kind == b"$":
            return (yield from self._text(_number(rest)))
        if kind == b"*":
            count = _number(rest)
            if count > MOST_ITEMS or depth == MOST_DEPTH:
                raise MalformedError(f"a reply with {count} items at depth {depth}")
            if count < 0:
                return None
            items: list[Reply] = []
            for _ in range(count):
                items.append((yield from self._reply(depth + 1)))
            return items
        raise MalformedError(f"not RESP 2: {line[:40]!r}")

    def _text(self, size: int) -> Generator[None, None, str | None]:
        if size < 0:
            return None
        if size > MOST_BYTES:
            raise MalformedError(f"a reply of {size} bytes")
        while len(self._buffer) < size + 2:
            yield
        text = self._buffer[:size].decode("utf-8", "surrogateescape")
        if self._buffer[size : size + 2] != b"\r\n":
            raise MalformedError("a text of a reply has another length")
        del self._buffer[: size + 2]
        return text


def _number(digits: bytes) -> int:
    try:
        return int(digits)
    except ValueError as error:
        raise MalformedError(f"not a number: {digits[:40]!r}") from error


def integers(reply: Reply) -> list[int]:
    """A reply that is a list of integers."""
    if isinstance(reply, list):
        numbers = [item for item in reply if isinstance(item, int)]
        if len(numbers) == len(reply):
            return numbers
    raise MalformedError(f"not a list of integers: {reply!r:.80}")


def texts(reply: Reply) -> list[str]:
    """A reply that is a list of texts."""
    if isinstance(reply, list):
        words = [item for item in reply if isinstance(item, str)]
        if len(words) == len(reply):
            return words
    raise MalformedError(f"not a list of texts: {reply!r:.80}")
