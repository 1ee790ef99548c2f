"""Random calls on the real scripts, judged by `judge.py`: `python3 judging.py [HOST PORT] [--seed N] [--locks N]`.

Without a server it starts one of its own. After each call it compares the reply, the messages, the events and the status with
what the judge asks for. No verdict depends on time: leases last an hour, and a lease ends when this program writes a past
deadline, as the conformance suite does. FAIRLOCK_LUA=FOLDER judges the scripts of another folder.
"""

import argparse
import copy
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid

from composed import scripts
from conformance import decoded, encoded
from fairlock._names import keys
from judge import GRACE_MS, Lock, client, names_owner, owner, unweighted, writes
from resp import Connection, ServerError

HOUR = 3_600_000
RETENTION_MS = 30_000     # for which the keys outlive the last deadline, at least
CALLS = 60
CLIENTS = ["0000000000000a1", "0000000000000b2", "0000000000000c3"]
OWNERS = ["6fa459eaee8a3ca4894edb77e160355e", "16fd2706baaf433b82eb8c7fada847da"]
PATIENCE = 60.0


class Difference(Exception):
    pass


def check(what, found, right):
    if found != right:
        raise Difference(f"{what} is {found!r}, and the judge says {right!r}")


class Server:
    """A server of our own, on a port that was free."""

    def __enter__(self):
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if not program:
            sys.exit("judging: there is no redis-server")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = tempfile.TemporaryDirectory(prefix="fairlock-judging-")
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder.name]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                Connection("127.0.0.1", self.port).close()
                return "127.0.0.1", self.port
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


class Real:
    """A lock on the server."""

    def __init__(self, server, calls):
        self.calls, self.connection = calls, Connection(*server, timeout=PATIENCE)
        self.ear = Connection(*server, timeout=PATIENCE)
        self.keys = keys("fairlock", f"judged:{uuid.uuid4()}")
        self.listening = set()
        self.subscribe("SUBSCRIBE", f"{self.keys[0]}:events")
        self.subscribe("SUBSCRIBE", "fairlock:c:0")

    def close(self):
        self.connection.call("DEL", *self.keys)
        self.connection.close()
        self.ear.close()

    def subscribe(self, how, channel):
        self.ear.send(how, channel)
        self.ear.read()

    def listen(self, name, listens):
        if listens != (name in self.listening):
            self.subscribe("SUBSCRIBE" if listens else "UNSUBSCRIBE", f"fairlock:c:{name}")
            self.listening ^= {name}

    def time_us(self):
        seconds, micros = map(int, self.connection.call("TIME"))
        return seconds * 1_000_000 + micros

    def call(self, script, options, args):
        """The reply, and between which moments of the server the script ran."""
        begun = self.time_us()
        reply = self.connection.call(*self.calls[script], 3, *self.keys, options, *args)
        return reply, begun, self.time_us()

    def hear(self):
        """All messages by client, and all events, since the last time."""
        self.connection.call("PUBLISH", "fairlock:c:0", "end")
        messages, events = {}, []
        while True:
            _, channel, payload = self.ear.read()
            if channel == "fairlock:c:0":
                return messages, events
            if channel == f"{self.keys[0]}:events":
                events += [tuple(line.split(" ")) for line in payload.split("\n")[1:]]
                continue
            grants, key = payload.split("\n", 1)
            check("the key of a message", key, self.keys[0])
            messages.setdefault(channel.removeprefix("fairlock:c:"), []).append(grants)

    def status(self):
        return self.connection.call(*self.calls["status"], 3, *self.keys, "", 0, 1000, 1000)

    def set_deadline(self, request, at_ms, near_ms):
        state = decoded(self.connection.call("HGET", self.keys[0], "s"))
        state["near"] = near_ms if not state["sole"] or near_ms == 1 else at_ms
        self.connection.call("ZADD", self.keys[2], "XX", "CH", at_ms, request)
        self.connection.call("HSET", self.keys[0], "s", encoded(state))


class Story:
    """One lock: random calls, each judged."""

    def __init__(self, server, calls, seed):
        self.random = random.Random(seed)
        self.real, self.lock = Real(server, calls), Lock()
        self.policy = self.random.choice(["", "", "w", "r", "n"])
        self.events = self.random.choice(["", "e"])
        self.votes = self.random.random() < 0.4
        self.numbers, self.asked, self.tickets, self.steps = {}, {}, [], []
        for name in CLIENTS:
            self.real.listen(name, self.random.random() < 0.8)

    def chance(self, share):
        return self.random.random() < share

    # Which call comes next.

    def name(self, mode, whose=None, of=None):
        who = of or self.random.choice(CLIENTS)
        self.numbers[who] = number = self.numbers.get(who, 0) + 1
        return f"{mode}{who}:{number}" + (f":{whose}" if whose else "")

    def some(self, of=None):
        """A request, most often one that the lock knows."""
        known = [request for request in self.lock.leases if of is None or writes(request) == (of == "w")]
        if known and self.chance(0.85):
            return self.random.choice(known)
        used = [request for request in self.asked if of is None or writes(request) == (of == "w")]
        return self.random.choice(used) if used and self.chance(0.8) else self.name(of or self.random.choice("rw"))

    def new_request(self):
        mode = self.random.choice("rrw" if self.policy == "n" else "rw")
        draw = self.random.random()
        if draw < 0.35:
            return self.name(mode, self.random.choice(OWNERS))
        if draw < 0.5 and self.lock.leases:
            return self.name(mode, owner(self.random.choice(list(self.lock.leases))).lstrip("*"))
        if mode == "r" and self.policy == "n" and self.chance(0.4):
            return self.name(mode, f"*{self.random.randint(2, 4)}")
        return self.name(mode)

    def lease(self):
        ms = HOUR - self.random.randint(0, 5000)
        return f"+{ms}" if self.chance(0.3) else ms

    def acquire(self):
        if self.asked and self.chance(0.15):
            return ("acquire", *self.asked[self.random.choice(list(self.asked))])
        request, lease = self.new_request(), self.lease()
        options = self.policy if not self.chance(0.02) else self.random.choice(["", "w", "r"])
        if options == "n":
            options = f"n{self.random.choice([1, 2, 3, 3, 3, 4])}"
        if request.endswith(tuple(f":*{n}" for n in range(2, 5))) and not options.startswith("n"):
            options = "n3"
        options += self.random.choice(["", "", "", "t", f"m{self.random.randint(1, 3)}"])
        args = [request, lease]
        if self.lock.upgrades(request) and self.chance(0.6):
            options += "u"
            args.append(self.random.choice([self.lock.token, self.lock.first, max(self.lock.first - 1, 0)]))
        elif self.chance(0.03) and writes(request):
            options += "u"
            args.append(self.lock.token)
        elif self.tickets and self.chance(0.25):
            args.append(self.random.choice(self.tickets) + self.random.choice([0, 0, 0, 1, 10**9]))
        elif self.votes and self.chance(0.7):
            options += "q"
        self.asked[request] = (options + self.events, args)
        return ("acquire", options + self.events, args)

    def release(self):
        return ("release", self.events, [*{self.some(): 0 for _ in range(self.random.choice([1, 1, 1, 2, 3]))}])

    def renew(self):
        requests = {self.some(): 0 for _ in range(self.random.choice([0, 0, 1, 2, 4]))}
        return ("renew", self.events, [word for request in requests for word in (request, self.lease())])

    def downgrade(self):
        write = self.some("w")
        read = self.name("r", owner(write), client(write))
        reads = [request for request in self.lock.leases if not writes(request) and names_owner(request) and owner(request) == owner(write)]
        if reads and (write not in self.lock.holders or self.chance(0.2)):
            read = self.random.choice(reads)
        return ("downgrade", self.events, [write, read, HOUR])

    def evict(self):
        whose = owner(self.some())
        return ("evict", self.events, [unweighted(whose) if self.chance(0.5) else whose])

    def place(self):
        draw = self.random.random
        ticket = self.random.choice(self.tickets or [1]) + self.random.choice([0, 1, 10**9]) if draw() < 0.8 else ""
        token = self.random.choice([self.lock.token, self.lock.first, self.lock.token - 1]) if ticket and draw() < 0.7 else 0
        counter = max(self.lock.seq + self.random.choice([-5, 10**9]), 1) if draw() < 0.2 else ""
        return ("place", self.events, [self.some(), HOUR, ticket, token if token > 0 else "", counter])

    def step(self):
        """A lease ends, a client goes deaf, or a call."""
        draw = self.random.randint(1, 100)
        if draw <= 8 and self.lock.leases:
            ended = self.random.choice(list(self.lock.leases))
            self.real.set_deadline(ended, 1, 1)
            self.lock.past.add(ended)
            self.steps.append(("a lease ends", ended))
            return
        if draw <= 12:
            name = self.random.choice(CLIENTS)
            self.real.listen(name, name not in self.real.listening)
            self.steps.append((name, "listens" if name in self.real.listening else "is deaf"))
            return
        ways = [(self.acquire, 52), (self.release, 26), (self.renew, 9), (self.downgrade, 8), (self.evict, 3)]
        ways += [(self.place, 14)] if self.votes else []
        self.judged(*self.random.choices([way for way, _ in ways], [weight for _, weight in ways])[0]())

    # What came of it.

    def judged(self, script, options, args):
        self.steps.append((script, options, *args))
        reply, begun, ended = self.real.call(script, options, args)
        self.steps.append(("  ->", reply))
        messages, events = self.real.hear()
        status = self.real.status()
        lock, answer, begun, ended = self.timed(script, options, args, begun, ended, status[8])
        self.check_status(lock, status, ended // 1000 - begun // 1000)
        self.check_reply(script, args, reply, answer, lock, begun // 1000)
        check("what was published", messages, {
            who: [text_of(told)] for who, told in answer.messages.items() if who in self.real.listening})
        noted = [(what, request, str(token)) for what, request, token in answer.events]
        check("the events", events, noted if "e" in options else [])
        self.lock = lock
        self.tickets += [ticket for _, ticket in lock.places.values() if ticket not in self.tickets]
        self.lengthen_cut_leases()

    def timed(self, script, options, args, begun, ended, state):
        """All numbers of a call come of one TIME. The judge tries the first moment, and what the numbers tell: a number by the
        clock is that TIME, and the ticket of a vote by the clock tells when its window began."""
        found = [*map(int, state[:3])]
        numbers = lambda lock: [lock.seq, lock.token, lock.first]
        first = self.tried(script, options, args, begun)
        told = [begun + number - expected for number, expected in zip(found, numbers(first[0]))]
        window = found[0] - 16384
        # A vote's number tells no moment but a window of 16 ms, so the window comes before what the other numbers tell.
        for moment in (begun, window, *told, *found):
            if begun <= moment <= ended:
                other = self.tried(script, options, args, moment)
                if numbers(other[0]) == found:
                    return *other, moment, ended if moment in (begun, window) else moment
        return *first, begun, ended

    def tried(self, script, options, args, time_us):
        lock = copy.deepcopy(self.lock)
        return lock, lock.call(script, options, args, time_us, self.real.listening.__contains__)

    def lengthen_cut_leases(self):
        """A cut lease would end by itself, so it gets longer again, or ends at once."""
        for request, deadline in list(self.lock.leases.items()):
            if request not in self.lock.past and deadline < self.real.time_us() // 1000 + HOUR // 2:
                ends = self.chance(0.3)
                self.lock.leases[request] = 1 if ends else self.real.time_us() // 1000 + HOUR // 2 + HOUR // 4
                near = 1 if self.lock.past or ends else min(self.lock.leases.values())
                self.real.set_deadline(request, self.lock.leases[request], near)
                self.lock.past |= {request} if ends else set()

    def check_reply(self, script, args, reply, answer, lock, now_ms):
        right = answer.reply
        if script == "acquire":
            status, value, *place = right
            if status in (0, 2) and not answer.cut:
                return check("the reply", reply, value)
            check("the kind of reply", type(reply), list)
            check("the reply but for next ms", reply[:2] + reply[3:], [status, value, lock.seq, *place])
            return self.check_next(reply[2], lock, answer, now_ms)
        if script == "release" and len(args) == 1 and not answer.cut:
            return check("the reply", [reply], right)
        check("the kind of reply", type(reply), list)
        check("the reply but for next ms", reply[1:], right)
        if not answer.looks:
            return check("next ms", reply[0], -1)
        return self.check_next(reply[0], lock, answer, now_ms)

    def check_next(self, next_ms, lock, answer, now_ms):
        deadlines = lock.leases.values()
        if not deadlines:
            return check("next ms", next_ms, -1)
        if not 0 < next_ms <= max(min(deadlines) - now_ms, 0) or answer.cut and next_ms > GRACE_MS:
            raise Difference(f"next ms is {next_ms}, and the next deadline is {min(deadlines) - now_ms} ms away")
        return None

    def check_status(self, lock, status, slack_ms):
        """`slack_ms`: by how much the moment of the call is not known."""
        holders = {status[6][n]: status[6][n + 1:n + 4] for n in range(0, len(status[6]), 4)}
        waiters = {status[7][n]: status[7][n + 1:n + 3] for n in range(0, len(status[7]), 3)}
        writing = sum(map(writes, lock.holders))
        mode = "write" if writing else "read" if lock.holders else ""
        check("the mode, the policy and the counts", status[1:6],
              [mode, lock.policy or "", str(writing), str(len(lock.holders)), str(len(lock.places))])
        check("the holders", sorted(holders), sorted(lock.holders))
        check("the queue", list(waiters), lock.queue())
        for request, (score, _) in waiters.items():
            band, ticket = lock.places[request]
            check(f"the score of {request}", int(score), (band << 52) + ticket)
        for request, (_, reads, token) in holders.items():
            check(f"the read holds beside {request}", int(reads), len(lock.readers(owner(request))))
            check(f"the token of {request}", int(token), lock.token)
        for request, words in [*holders.items(), *waiters.items()]:
            found, right = int(words[0] if request in holders else words[1]), lock.leases[request]
            if request not in lock.past and not right <= found <= right + slack_ms:
                raise Difference(f"the deadline of {request} is {found}, and not {right} or up to {slack_ms} ms more")
            lock.leases[request] = found
        if status[8]:
            names = ["seq", "token", "first", "near", "keep", "cap", "reads", "writes", "waiting", "sole", "more", "up", "holder"]
            state = dict(zip(names + ["limit", "used"], status[8]))
            right = dict(seq=lock.seq, token=lock.token, first=lock.first, reads=len(lock.readers()),
                         writes=writing, waiting=len(lock.places), more=0)
            if lock.policy == "n":
                right.update(limit=lock.limit, used=lock.used())
            check("the state", {name: int(state[name]) for name in right}, right)
            deadlines = [lock.leases[request] for request in lock.leases if request not in lock.past]
            near, keep = int(state["near"]), int(state["keep"])
            if bool(near) != bool(lock.leases) or deadlines and not (near <= min(deadlines) and keep >= max(deadlines) + RETENTION_MS):
                raise Difference(f"near is {near}, keep is {keep}, and the deadlines are {sorted(deadlines)}")


def text_of(told):
    """A message's text: its numbers, each before its requests."""
    words, last = [], None
    for number, request in told:
        words += [request] if number == last else [str(number), request]
        last = number
    return " ".join(words)


def run(server, seed, locks):
    connection = Connection(*server, timeout=PATIENCE)
    calls = {name: ("EVALSHA", connection.call("SCRIPT", "LOAD", text)) for name, text in scripts(flagged=False).items()}
    made = 0
    for number in range(locks):
        story = Story(server, calls, f"{seed}/{number}")
        try:
            for _ in range(CALLS):
                before = story.lock
                story.step()
                made += before is not story.lock
        except (Difference, ServerError) as difference:
            print(f"judging: lock {number}: {difference}\n  policy {story.policy!r}, listening: {sorted(story.real.listening)}")
            print(*(f"  {step}" for step in story.steps), sep="\n")
            return made, number
        finally:
            story.real.close()
    return made, None


def main():
    parser = argparse.ArgumentParser(prog="judging.py", description=__doc__)
    parser.add_argument("server", nargs="*", metavar="HOST PORT")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--locks", type=int, default=100, help=f"how many locks, each with {CALLS} steps")
    args = parser.parse_args()
    print(f"judging: seed {args.seed}", flush=True)
    if args.server:
        made, failed = run((args.server[0], int(args.server[1])), args.seed, args.locks)
    else:
        with Server() as server:
            made, failed = run(server, args.seed, args.locks)
    print(f"judging: {made} calls judged, {'no difference' if failed is None else 'a difference'}")
    sys.exit(failed is not None)


if __name__ == "__main__":
    main()
