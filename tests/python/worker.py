"""Users of locks in a process of their own. Lines of input tell it what to do, as in tests/support/src/process.rs."""

import queue
import sys
import threading
import time
from urllib.parse import urlparse

import fairlock
from resp import Connection

ENTER = "return { redis.call('HINCRBY', KEYS[1], 'r', ARGV[1]), redis.call('HINCRBY', KEYS[1], 'w', ARGV[2]) }"
saying = threading.Lock()


def say(*words):
    with saying:
        print("@" + " ".join(str(word) for word in words), flush=True)


def step(connection, lock, mode, by):
    """Notes an entry or an exit where all users can see it; returns whether no conflicting user is inside."""
    readers, writers = connection.call(
        "EVAL", ENTER, 1, f"resource:{lock}", by * (mode != "w"), by * (mode == "w"))
    return writers == 0 or (writers == 1 and readers == 0)


def acquire(client, mode, lock):
    """`p2/4` are 2 of 4 permits."""
    if mode[0] != "p":
        return client.acquire(lock, mode)
    weight, limit = mode[1:].split("/")
    return client.permits(lock, int(limit), int(weight), longest=1)


def user(client, connection, number, mode, lock, hold_ms, inbox):
    try:
        hold = acquire(client, mode, lock)
    except Exception as error:
        return say("failed", number, repr(error))
    clear = step(connection, lock, mode, 1)
    say("entered", number, hold.token, "-", "clear" if clear else "conflict")
    if hold_ms != "-":
        time.sleep(int(hold_ms) / 1000)
    else:
        while inbox.get() != "release":
            say("held", number, str(hold.is_held()).lower())
    step(connection, lock, mode, -1)
    try:
        hold.release()
        say("released", number, "true")
    except fairlock.Lost:
        say("released", number, "false")


def main():
    url, lease_ms = urlparse(sys.argv[1]), int(sys.argv[2])
    client = fairlock.Client(url.hostname, url.port, lease=lease_ms / 1000, label="python")
    connection = Connection(url.hostname, url.port, timeout=30.0)
    inboxes = {}
    say("connected")
    for line in sys.stdin:
        order, number, *rest = line.split()
        if order == "ask":
            inbox = inboxes[number] = queue.Queue()
            mode, lock, hold_ms = rest
            arguments = (client, connection, number, mode, lock, hold_ms, inbox)
            threading.Thread(target=user, args=arguments, daemon=True).start()
        else:
            inboxes[number].put(order)


if __name__ == "__main__":
    main()
