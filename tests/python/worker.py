"""Users of locks in a process of their own. Lines of input tell it what to do, as in tests/support/src/process.rs."""

import asyncio
import sys

import fairlock
from fairlock._connection import Address, Connection

ENTER = "return { redis.call('HINCRBY', KEYS[1], 'r', ARGV[1]), redis.call('HINCRBY', KEYS[1], 'w', ARGV[2]) }"


def say(*words: object) -> None:
    print("@" + " ".join(str(word) for word in words), flush=True)


async def step(connection: Connection, lock: str, mode: str, by: int) -> bool:
    """Notes an entry or an exit where all users can see it; returns whether no conflicting user is inside."""
    counts = by * (mode != "w"), by * (mode == "w")
    reply = await connection.call("EVAL", ENTER, 1, f"resource:{lock}", *counts)
    assert isinstance(reply, list)
    readers, writers = reply
    return writers == 0 or (writers == 1 and readers == 0)


def asked(client: fairlock.Client, mode: str, lock: str) -> fairlock.Acquire:
    """`p2/4` are 2 of 4 permits."""
    if mode[0] != "p":
        return client.rw_lock(lock).write() if mode == "w" else client.rw_lock(lock).read()
    weight, limit = mode[1:].split("/")
    return client.semaphore(lock, int(limit)).permits(int(weight), max_queue=1)


async def user(
    acquire: fairlock.Acquire,
    connection: Connection,
    number: str,
    mode: str,
    hold_ms: str,
    inbox: "asyncio.Queue[str]",
) -> None:
    try:
        guard = await acquire
    except fairlock.FairlockError as error:
        return say("failed", number, repr(error))
    clear = await step(connection, guard.name, mode, 1)
    say("entered", number, guard.fencing_token, "-", "clear" if clear else "conflict")
    if hold_ms != "-":
        await asyncio.sleep(int(hold_ms) / 1000)
    else:
        while await inbox.get() != "release":
            say("held", number, str(guard.is_held()).lower())
    await step(connection, guard.name, mode, -1)
    try:
        await guard.release()
        say("released", number, "true")
    except fairlock.LostError:
        say("released", number, "false")


async def main() -> None:
    url, lease_ms = sys.argv[1], int(sys.argv[2])
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    inboxes: dict[str, asyncio.Queue[str]] = {}
    connection = await Connection.open(Address.of_url(url), 30.0)
    async with fairlock.Client(url, lease=lease_ms / 1000, label="python") as client, asyncio.TaskGroup() as users:
        say("connected")
        async for line in lines:
            order, number, *rest = line.decode().split()
            if order == "ask":
                inbox = inboxes[number] = asyncio.Queue()
                mode, lock, hold_ms = rest
                users.create_task(user(asked(client, mode, lock), connection, number, mode, hold_ms, inbox))
            else:
                inboxes[number].put_nowait(order)
        raise SystemExit  # the parent is gone


if __name__ == "__main__":
    asyncio.run(main())
