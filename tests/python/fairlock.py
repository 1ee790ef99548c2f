"""A small client of fairlock: PROTOCOL.md in Python, standard library only.

This client exists only to prove the protocol: its waiters share a queue with those of the Rust client. It works with
one server, threads and two connections. `Client.acquire` waits. One background thread renews, another one subscribes.
"""

import os
import secrets
import socket
import threading
import time

from composed import library, scripts, sha1
from resp import Connection, ServerError

CHUNK = 500              # requests in one call
PING_EVERY = 1.0
DEAD_AFTER = 3.0         # seconds without a sign of life
INTRODUCED_EVERY = 30.0
BELIEVED_FOR = 10.0
FINISH_PATIENCE = 3.0
GRACE_MS = 1000          # a grant that nobody heard has no longer lease
FOLLOWED_FOR = 60.0      # seconds in which this client looks after such leases


class Lost(Exception):
    """The lock is no longer held: stop what it guards."""


class Refused(Exception):
    """The server replied with a refusal."""


class QueueFull(Exception):
    """As many wait as the caller allows, or more."""


def keys(prefix, name):
    """The state, the queue and the leases of a lock."""
    if not 1 <= len(name.encode()) <= 1024:
        raise ValueError("a name has 1 to 1024 bytes")
    state = "%s:{%s}" % (prefix, name.replace("%", "%25").replace("}", "%7D"))
    return state, state + ":q", state + ":l"


def read_message(payload):
    """Pairs of a request and its token, and the key of their lock. None: no script of ours wrote it."""
    groups, line_feed, key = payload.partition("\n")
    token, grants = None, []
    for word in groups.split(" "):
        if word.isdecimal():
            token = int(word)
        elif token is None or not word:
            return None
        else:
            grants.append((word, token))
    return (grants, key) if line_feed and grants else None


class Request:
    """One call of acquire: what the client knows of it, and what that proves. Knowledge only moves forward."""

    def __init__(self, number, name, lock, lease):
        self.number, self.name, self.lock, self.lease = number, name, lock, lease
        self.phase = "asked"     # waiting, granted, held, over
        self.why = None          # of "over": displaced, evicted, lost, released
        self.ticket = None
        self.seq = 0             # the counter when a reply last said that it waits
        self.token = 0
        self.since = 0.0         # the server executes calls sent later after the grant
        self.proven = 0.0        # the server keeps it at least until then
        self.doubted = 0.0       # "waits" proves nothing if its call was sent earlier: the lease may have been cut since
        self.renewed = time.monotonic()
        self.due = self.renewed + lease / 3

    def prove(self, sent, waits=False):
        """A call sent at that time was answered: the server gave a lease later than that."""
        if not waits or sent >= self.doubted:
            self.proven = max(self.proven, sent + self.lease - max(self.lease / 50, 0.002))
        self.renewed = max(self.renewed, sent)
        self.due = self.renewed + self.lease / 3

    def doubt(self, now):
        """A subscription was confirmed. Before it nobody heard the client's messages, and scripts may have cut leases."""
        if self.phase in ("asked", "waiting"):
            self.doubted, self.proven = now, 0.0

    def granted(self, token, since):
        self.phase, self.token, self.since = "granted", token, since

    def end(self, why):
        self.phase, self.why = "over", why

    def queued(self, sent, ticket, seq):
        if self.phase == "asked" and self.token > seq:       # its message came first
            self.ticket = ticket
            self.granted(self.token, sent)
        elif self.phase == "asked":
            self.phase, self.ticket, self.seq = "waiting", ticket, seq
        else:
            self.told_to_wait(sent, seq)
        self.prove(sent, waits=True)

    def told_to_wait(self, sent, seq):
        """A call sent at that time found the request waiting, and the counter at `seq`: a grant up to that is over. A
        grant that was known before is over too: the server went back to an earlier state."""
        if self.phase == "waiting":
            self.seq = max(self.seq, seq)
        elif self.token <= seq or sent > self.since:
            if self.phase == "held":
                self.end("lost")
            elif self.phase == "granted":
                self.phase, self.seq = "waiting", max(self.token, seq)
                self.ticket = self.ticket or self.token

    def heard(self, token):
        if token == 0:
            self.end("evicted")
        elif token == 1:                                     # an upgrade, and its owner's read hold has ended
            if self.phase == "waiting":
                self.end("displaced")
        elif self.phase == "asked":
            self.token = max(self.token, token)
        elif self.phase == "waiting" and token > self.seq:   # otherwise it is of a former life
            self.granted(token, time.monotonic())

    def stands(self, sent, standing, first):
        """Takes in the reply to a renewal that was sent at that time. `first` is the token with which the phase began."""
        self.lapse()
        if self.phase in ("asked", "over"):
            return
        if standing == -1:
            return self.end("lost" if self.phase == "held" else "displaced")
        if standing <= 0:
            self.told_to_wait(sent, -standing)
        elif self.phase == "waiting":
            if standing > self.seq or sent >= self.renewed:  # otherwise a later call overtook this reply
                self.granted(standing, time.monotonic())
        elif (first if self.name.startswith("r") else standing) > self.token:
            if self.phase == "held":                         # the hold was interrupted, and its owner entered once more
                return self.end("lost")
            self.token = standing
        self.prove(sent, waits=standing <= 0)

    def lapse(self):
        """Ends a hold whose proof has ended. It is lost for ever, whatever a late reply says."""
        if self.phase == "held" and time.monotonic() >= self.proven:
            self.end("lost")


class Hold:
    """The lock, until `release` or until it is lost."""

    def __init__(self, client, request):
        self.client, self.request, self.token = client, request, request.token

    def is_held(self):
        with self.client.changed:
            self.request.lapse()
            return self.request.phase == "held"

    def release(self):
        with self.client.changed:
            self.request.lapse()
            lost = self.request.phase != "held"
            self.request.end("released")
        try:
            stood = self.client.release(self.request)
            lost |= stood < 2 or stood > self.token
        except (ConnectionError, ServerError):
            self.client.leave(self.request)      # the server may have executed it
            raise
        if lost:
            raise Lost(self.request.lock[0])


class Client:
    """A client has two connections to the server: one for commands and one for its subscription."""

    def __init__(self, host, port, prefix="fairlock", lease=10.0, label="", user=None, password=None):
        self.server, self.login = (host, port), {"user": user, "password": password}
        self.prefix, self.lease, self.label = prefix, lease, label
        self.id = "%015x" % secrets.randbits(60)
        self.number = 0
        self.requests = {}          # by number: requests that are not over, or not yet released
        self.left = []              # requests to release in the background, each with the end of its patience
        self.looks = {}             # lock -> when to check it though nothing of ours is due
        self.followed = {}          # lock -> until when to check it though nobody waits here
        self.audience = {}          # lock's key or "*" -> until when the client believes that somebody listens
        self.closed = False
        self.changed = threading.Condition(threading.RLock())
        self.commands, self.texts, self.hashes, self.functions = None, {}, {}, None
        self.connecting = threading.RLock()
        self.introduce()
        self.ear = self.listen()
        self.threads = [threading.Thread(target=task, daemon=True) for task in (self.hear, self.keep)]
        for thread in self.threads:
            thread.start()

    # ---- calls

    def command(self, *words):
        """Returns the reply, or raises ConnectionError: the server may have executed the call. The next call reconnects."""
        with self.connecting:
            try:
                if self.commands is None:
                    self.commands = Connection(*self.server, **self.login)
                    hello = self.commands.call("HELLO")
                    modern = int(hello[hello.index("version") + 1].split(".")[0]) >= 7
                    self.texts = scripts(modern)
                    self.hashes = {name: sha1(text) for name, text in self.texts.items()}
                    self.functions = self.load() if modern else None
                return self.commands.call(*words)
            except ServerError:
                raise
            except (OSError, ValueError) as error:
                if self.commands is not None:
                    self.commands.close()
                self.commands = None
                raise ConnectionError(str(error)) from error

    def load(self):
        """Loads the library of functions. Returns its name, or None: scripts are called by EVALSHA."""
        name, text = library()
        try:
            self.commands.call("FUNCTION", "LOAD", text)
        except ServerError as error:
            return name if "already exists" in str(error) else None
        return name

    def script(self, name, lock, *args, options=""):
        """Calls a script: as a function, by its hash, or with its text."""
        if any(self.audience.get(subject, 0) > time.monotonic() for subject in (lock[0], "*")):
            options += "e"
        rest = [3, *lock, options, *args]
        with self.connecting:
            if self.commands is None:
                self.command("PING")
            called = ["FCALL", f"{self.functions}_{name}"] if self.functions else ["EVALSHA", self.hashes[name]]
            try:
                return self.command(*called, *rest)
            except ServerError as error:
                if "Function not found" in str(error):
                    self.functions = self.load()
                elif error.code != "NOSCRIPT":
                    raise
            return self.command("EVAL", self.texts[name], *rest)

    def finish(self, lock, next_ms):
        """A script stopped at its batch limit: makes scripts do the rest."""
        until = time.monotonic() + FINISH_PATIENCE
        while next_ms == 0 and time.monotonic() < until:
            next_ms = self.script("renew", lock)[0]
        with self.changed:
            self.follow(lock, next_ms)
            self.changed.notify_all()

    # ---- acquire and release

    def permits(self, name, limit, weight=1, timeout=None, longest=None):
        """Takes so many of the permits of a semaphore. `longest`: raises QueueFull behind that many waiters."""
        if not 1 <= weight <= limit:
            raise ValueError(f"{weight} permits of {limit}")
        owner = f"*{weight}" if weight > 1 else ""
        return self.acquire(name, "r", owner, f"n{limit}", timeout, longest)

    def acquire(self, name, mode="w", owner="", policy="", timeout=None, longest=None):
        """Returns a Hold, or None if there was no grant within `timeout` seconds (0: a try-lock)."""
        lock = keys(self.prefix, name)
        until = None if timeout is None else time.monotonic() + timeout
        ticket = ""
        while True:
            queue = "" if longest is None or ticket else f"m{longest}"
            request = self.ask(lock, mode, owner, policy + queue, ticket, only_now=timeout == 0)
            if request is None:
                return None
            outcome = self.wait(request, until)
            if outcome == "held":
                return Hold(self, request)
            if outcome == "late":
                return None
            ticket = request.ticket or ""       # it lost its place and asks again with its ticket

    def ask(self, lock, mode, owner, policy, ticket, only_now):
        with self.changed:
            self.number += 1
            name = f"{mode}{self.id}:{self.number}" + (f":{owner}" if owner else "")
            # Register before the call is sent, so that no message comes too early.
            request = self.requests[self.number] = Request(self.number, name, lock, self.lease)
        patience = time.monotonic() + self.lease
        lost_replies = False
        while True:
            sent = time.monotonic()
            try:
                options = policy + ("t" if only_now else "")
                reply = self.script("acquire", lock, name, int(self.lease * 1000), ticket, options=options)
                if isinstance(reply, int):       # a token; or 0: busy
                    reply = [2 if reply else 0, reply, -1, 0]
                if reply[0] == -2 and 0 < reply[1] <= self.number and reply[1] not in self.requests:
                    # An orphan: the server executed an acquire after its release.
                    orphans = [f"{mode}{self.id}:{reply[1]}:{owner}" for mode in "rw"]
                    self.end(lock, *orphans)
                    continue
                break
            except ConnectionError:
                lost_replies = True
                if time.monotonic() > patience:
                    self.leave(request)
                    raise
                time.sleep(0.02)
            except ServerError as error:
                if error.code == "LAYOUT":
                    self.forget(request)
                    raise Refused(str(error)) from error
                self.leave(request)
                raise
        status, value, next_ms, seq, *_ = reply
        with self.changed:
            if status == 2:
                request.prove(sent)
                if request.phase == "asked":
                    request.granted(value, sent)
            elif status == 1:
                request.queued(sent, value, seq)
                self.look(lock, next_ms)
            self.follow(lock, next_ms)
            self.changed.notify_all()
        if status == 2:
            self.finish(lock, next_ms)
        if status in (1, 2):
            return request
        if lost_replies:
            self.leave(request)                 # the server may have executed an earlier sending
        else:
            self.forget(request)
        if status == 0:
            return None
        if status == -5:
            raise QueueFull(f"{value} wait for {lock[0]}")
        said = {-1: "another reader is upgrading", -2: "this owner waits here already"}
        raise Refused(said.get(status, f"the lock has another policy: {chr(value)!r}"))

    def wait(self, request, until):
        while True:
            with self.changed:
                while request.phase == "waiting":
                    left = None if until is None else until - time.monotonic()
                    if left is not None and left <= 0:
                        break
                    self.changed.wait(left)
                if request.phase == "granted" and request.proven > time.monotonic():
                    request.phase = "held"
                    return "held"
                if request.phase == "over":
                    self.forget(request)
                    if request.why == "evicted":
                        raise Lost("an operator evicted the owner")
                    return "again"
                if request.phase == "waiting":
                    self.leave(request)
                    return "late"
            self.renew(request.lock, [request])  # granted, but the proof has ended: renew first

    def release(self, request):
        """Returns a token: it held; 1: it waited; 0: the server does not know it."""
        status = self.end(request.lock, request.name)
        self.forget(request)
        return status

    def end(self, lock, *names):
        reply = self.script("release", lock, *names)
        if isinstance(reply, int):               # of one request, and there is nothing left to do
            return reply
        self.finish(lock, reply[0])
        return reply[1]

    def leave(self, request):
        """Releases it in the background, until its lease must have ended."""
        with self.changed:
            request.end("released")
            self.left.append((request, time.monotonic() + request.lease))
            self.changed.notify_all()

    def forget(self, request):
        with self.changed:
            self.requests.pop(request.number, None)

    # ---- renewals

    def look(self, lock, next_ms):
        """A lease of another request ends then: checks whether one of ours enters."""
        if next_ms >= 0:
            at = time.monotonic() + next_ms / 1000
            self.looks[lock] = min(self.looks.get(lock, at), at)

    def follow(self, lock, next_ms):
        """A lease may end soon that a script cut, and perhaps nobody else knows: checks then, though nobody waits here."""
        if 0 < next_ms <= GRACE_MS:
            self.followed.setdefault(lock, time.monotonic() + FOLLOWED_FOR)
            self.look(lock, next_ms)
        else:
            self.followed.pop(lock, None)

    def keep(self):
        while not self.closed:
            with self.changed:
                now = time.monotonic()
                due, next_at = self.due(now)
                left, self.left = self.left, []
                if not due and not left:
                    self.changed.wait(max(next_at - now, 0))
                    continue
            for lock, requests in due.items():
                for chunk in [requests[at:at + CHUNK] for at in range(0, max(len(requests), 1), CHUNK)]:
                    self.renew(lock, chunk)
            for request, until in left:
                try:
                    self.release(request)
                except (ConnectionError, ServerError):
                    if time.monotonic() < until:
                        self.left.append((request, until))
                    else:
                        self.forget(request)
                    time.sleep(0.02)

    def due(self, now):
        """Returns what to renew now, by lock, and when to check next."""
        due, next_at = {}, now + 1.0
        for request in list(self.requests.values()):
            was_held = request.phase == "held"
            request.lapse()
            if was_held and request.phase == "over":
                self.leave(request)              # others need not wait for the end of its lease
            if request.phase in ("waiting", "granted", "held"):
                if request.due <= now:
                    due.setdefault(request.lock, []).append(request)
                    request.due = now + 0.05     # in case the call fails
                next_at = min(next_at, request.due)
        waiting = {request.lock for request in self.requests.values() if request.phase == "waiting"}
        for lock, at in list(self.looks.items()):
            if lock not in waiting and self.followed.get(lock, 0.0) <= now:
                del self.looks[lock]
                self.followed.pop(lock, None)
            elif at <= now:
                del self.looks[lock]
                due.setdefault(lock, [])
            else:
                next_at = min(next_at, at)
        return due, next_at

    def renew(self, lock, requests):
        sent = time.monotonic()
        pairs = [word for request in requests for word in (request.name, int(request.lease * 1000))]
        try:
            next_ms, first, *standings = self.script("renew", lock, *pairs)
        except (ConnectionError, ServerError):
            time.sleep(0.02)
            with self.changed:
                self.look(lock, 50)
            return
        with self.changed:
            for request, standing in zip(requests, standings):
                request.stands(sent, standing, first)
            if not requests or any(standing <= 0 and standing != -1 for standing in standings):
                self.look(lock, next_ms)
            if not requests:
                self.follow(lock, next_ms)
            self.changed.notify_all()

    # ---- messages

    def listen(self):
        ear = Connection(*self.server, timeout=DEAD_AFTER, protocol=2, **self.login)
        ear.send("SUBSCRIBE", f"{self.prefix}:c:{self.id}", f"{self.prefix}:listen")
        for _ in range(2):
            ear.read()
        for subject in self.command("SMEMBERS", f"{self.prefix}:listen"):
            self.audience[subject] = time.monotonic() + BELIEVED_FOR
        threading.Thread(target=self.ping, args=(ear,), daemon=True).start()
        return ear

    def ping(self, ear):
        """Sends pings, so that a dead connection shows."""
        while not self.closed:
            try:
                ear.send("PING")
            except OSError:
                return
            if time.monotonic() >= self.introduced:
                self.introduce()
            time.sleep(PING_EVERY)

    def introduce(self):
        """This is for status and optional, so a failure is not fatal."""
        self.introduced = time.monotonic() + INTRODUCED_EVERY
        text = f"{os.getpid()}\n{socket.gethostname()}\n{self.label}"
        try:
            self.command("SET", f"{self.prefix}:client:{self.id}", text, "EX", 90)
        except (ConnectionError, ServerError):
            pass

    def hear(self):
        while not self.closed:
            try:
                reply = self.ear.read()
                if isinstance(reply, list) and reply[0] == "message":
                    self.take(reply[1], reply[2])
            except (OSError, ValueError):
                self.ear.close()
                self.hear_again()

    def hear_again(self):
        while not self.closed:
            try:
                self.ear = self.listen()
                break
            except (OSError, ServerError):
                time.sleep(0.05)
        with self.changed:                       # a message may have been lost
            for request in self.requests.values():
                request.doubt(time.monotonic())
                if request.phase == "waiting":
                    request.due = 0.0
            self.changed.notify_all()

    def take(self, channel, payload):
        if channel == f"{self.prefix}:listen":
            self.audience[payload] = time.monotonic() + BELIEVED_FOR
            return
        message = read_message(payload)
        if message is None:
            return
        grants, key = message
        with self.changed:
            for name, token in grants:
                client, number, *_ = name[1:].split(":")
                request = self.requests.get(int(number))
                if request is not None and request.name == name:
                    request.heard(token)
                elif client == self.id and token > 0 and int(number) <= self.number:
                    # An orphan, which nobody will use: the server executed an acquire after its release.
                    lock = (key, key + ":q", key + ":l")
                    self.leave(Request(int(number), name, lock, self.lease))
            self.changed.notify_all()

    def close(self):
        """Leaves every queue and releases every hold."""
        try:
            for request in list(self.requests.values()):
                request.end("released")
                self.release(request)
            self.command("DEL", f"{self.prefix}:client:{self.id}")
        except (ConnectionError, ServerError):
            pass                                 # what is left expires with its lease
        self.closed = True
        self.ear.close()
