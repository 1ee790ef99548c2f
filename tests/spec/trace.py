"""Turns the journals that `torture --journal FILE` wrote into the constants of Trace.tla, and has TLC check them."""

import collections
import json
import pathlib
import re
import tempfile

EVENTS = 4000     # in one run of TLC
CHUNK = 100       # in one definition
NOT_TOLD = -(1 << 63)     # by a reply of one number; -2 in Trace.tla
LONGEST_MS = 10**8
KEPT_US = 30_000_000       # for which the keys outlive the last deadline, at least; twice that at most


class Numbers:
    """TLC's integers have 32 bits, so moments and tokens count from the beginning of the run: half an hour at most."""

    def __init__(self, base):
        self.base = base

    def us(self, n):
        sign = -1 if n < -1 else 1
        if abs(n) <= self.base:
            return n if abs(n) < 1 << 20 else 0
        found = abs(n) - self.base
        if found >= 1 << 31:
            raise SystemExit("trace: the run is longer than half an hour, or its clock was set: use a shorter one")
        return sign * found


def owner_of(request):
    parts = request.split(":", 2)
    return parts[2] if len(parts) > 2 and not parts[2].startswith("*") else request[1:]


def named(request):
    parts = request.split(":", 2)
    return len(parts) > 2 and not parts[2].startswith("*")


def weight_of(request):
    found = re.search(r":\*(\d+)$", owner_of(request))
    return int(found[1]) if found else 1


def client_of(request):
    return request[1:].split(":", 1)[0]


def unweighted(owner):
    return re.sub(r":\*\d+$", "", owner)


def leases_of(record):
    """The leases that a call gives, in its own order of requests, as text."""
    args, script = record["args"], record["script"]
    return {"acquire": args[1:2], "renew": args[1::2], "downgrade": args[2:] * 2}.get(script, [])


def last_deadline_of(record):
    """The last deadline that the call has set, in us."""
    reply, script = record["reply"], record["script"]
    stands = {"acquire": [reply[0] > 0], "renew": [n != -1 for n in reply[2:]], "downgrade": [reply[-1] != -1] * 2}.get(script, [])
    return max((record["at"] + int(lease) * 1000 for lease, known in zip(leases_of(record), stands) if known), default=0)


def requests_of(record):
    args, script = record["args"], record["script"]
    own = {"acquire": args[:1], "release": args, "renew": args[::2], "downgrade": args[:2], "evict": []}[script]
    return own + [request for _, request, _ in record["notes"] if request != "-"]


def segments(path):
    """What happened to one lock from a known state on: lines of the file. What follows a loss is left out until the server is
    emptied, because the journal does not tell what was left of the lock. So is what follows a pause after which the lock's keys
    may have expired, unless they must have: then the lock begins anew."""
    current, done, lost, left_out, last = collections.defaultdict(list), [], set(), 0, collections.defaultdict(int)

    def ended(lock):
        done.append(current.pop(lock, []))
        last.pop(lock, None)

    with open(path) as file:
        for line, text in enumerate(file, 1):
            record = json.loads(text)
            lock = record.get("lock")
            if record.get("break") == "emptied":
                for lock in list(current):
                    ended(lock)
                lost.clear()
                continue
            damaged = "break" in record or any(what == "reset" for what, _, _ in record["notes"])
            silent_us = 0 if damaged or not last[lock] else record["at"] - last[lock]
            if damaged or silent_us >= KEPT_US:
                ended(lock)
                if silent_us < 2 * KEPT_US:
                    lost.add(lock)
            if lock in lost:
                left_out += "break" not in record
            else:
                current[lock].append({**record, "line": line})
                last[lock] = max(last[lock], last_deadline_of(record))
    done += current.values()
    return [records for records in done if records], left_out


def sequence(items):
    return "<<" + ", ".join(items) + ">>"


def chunked(name, items):
    """Definitions whose concatenation is `name`. One literal would be too deep for the parser."""
    names, lines = [], []
    for start in range(0, len(items), CHUNK):
        names.append(f"{name}{start}")
        lines.append(f"{name}{start} == <<\n " + ",\n ".join(items[start:start + CHUNK]) + ">>")
    while len(names) > 1:
        pairs = [names[n:n + 2] for n in range(0, len(names), 2)]
        names = []
        for pair in pairs:
            names.append(f"{pair[0]}j" if len(pair) > 1 else pair[0])
            lines += [f"{names[-1]} == {pair[0]} \\o {pair[1]}"] if len(pair) > 1 else []
    return [*lines, f"{name} == {names[0] if names else '<<>>'}"]


class Batch:
    """Some segments as one log."""

    def __init__(self, records, numbers):
        self.numbers, self.requests, self.owners, self.events = numbers, [], {}, []
        for segment in records:
            names = sorted({name for record in segment for name in requests_of(record)}, key=str.encode)
            self.ids = {name: len(self.requests) + n for n, name in enumerate(names, 1)}
            self.requests += names
            for name in names:
                self.owners.setdefault(owner_of(name), len(self.owners) + 1)
            self.events.append('[op |-> "start"]')
            self.events += [self.event(record) for record in segment]

    def numbered(self, client, number):
        """The requests of that number of the client. Only one exists, but a client that forgot its mode releases both."""
        return [n for name, n in self.ids.items() if client_of(name) == client and name.split(":")[1] == str(number)]

    def how(self, args):
        _, _, when, policy, ticket = args
        if ticket == "q":
            raise SystemExit("trace: Trace.tla has no votes of a quorum: use a journal of one server")
        values = {
            "try": str(when == "try").upper(), "most": when[1:] if when[0] == "m" else "-1",
            "policy": f'"{policy[:1]}"', "limit": policy[1:] or "0",
            "ticket": str(self.numbers.us(int(ticket))) if ticket and ticket[0] != "u" else "0",
            "upgrade": str(ticket.startswith("u")).upper(),
            "token": str(self.numbers.us(int(ticket[1:] or 0))) if ticket.startswith("u") else "0",
        }
        return "[" + ", ".join(f"{key} |-> {value}" for key, value in values.items()) + "]"

    def event(self, record):
        args, script, notes = record["args"], record["script"], collections.defaultdict(list)
        tokens = []
        for what, request, token in record["notes"]:
            kind = {"granted": "entered", "queued": "queued", "cut": "cut"}.get(what, "gone")
            notes[kind].append(str(self.ids[request]))
            tokens += [token] if kind == "entered" else []
        requests = {"acquire": args[:1], "release": args, "renew": args[::2], "downgrade": args[:2], "evict": []}[script]
        leases = leases_of(record)
        reply = record["reply"] if script == "acquire" else record["reply"][1:]
        next_ms = record["reply"][2 if script == "acquire" else 0]
        # The second number of acquire is a token or a ticket, or small: a count, a policy, a request's number.
        told = [-2 if n == NOT_TOLD else self.numbers.us(n) for n in reply]
        values = {
            "op": f'"{script}"', "line": str(record["line"]), "now": str(record["at"] // 1000 - self.numbers.base // 1000),
            "clock": str(self.numbers.us(record["at"])), "rs": sequence(str(self.ids[request]) for request in requests),
            "leases": sequence(str(min(int(lease), LONGEST_MS)) for lease in leases),
            "later": sequence(str(lease.startswith("+")).upper() for lease in leases),
            "told": sequence(map(str, told)), "next": str(-2 if next_ms == NOT_TOLD else next_ms),
            **{kind: "{" + ", ".join(notes[kind]) + "}" for kind in ("entered", "queued", "gone", "cut")},
            "token": str(self.numbers.us(tokens[-1] if tokens else 0)), "falls": str(tokens != sorted(tokens)).upper(),
        }
        if script == "acquire":
            values["how"] = self.how(args)
            already = self.numbered(client_of(args[0]), reply[1]) if reply[0] == -2 else []
            values["already"] = "{" + ", ".join(map(str, already)) + "}"
        if script == "evict":
            found = [str(owner) for name, owner in self.owners.items() if args[0] in (name, unweighted(name))]
            values["owners"] = "{" + ", ".join(found) + "}"
        return "[" + ", ".join(f"{key} |-> {value}" for key, value in values.items()) + "]"

    def write(self, folder):
        numbered = list(enumerate(self.requests, 1))
        lines = ["---- MODULE MC ----", "EXTENDS Trace", f"mcRequests == 1..{len(numbered)}"]
        lines += ["mcWrites == {" + ", ".join(str(n) for n, name in numbered if name[0] == "w") + "}"]
        lines += ["mcNamed == {" + ", ".join(str(n) for n, name in numbered if named(name)) + "}"]
        lines += chunked("mcOwner", [str(self.owners[owner_of(name)]) for name in self.requests])
        lines += chunked("mcWeight", [str(weight_of(name)) for name in self.requests])
        clients = {client: n for n, client in enumerate(sorted({client_of(name) for name in self.requests}), 1)}
        lines += chunked("mcClient", [str(clients[client_of(name)]) for name in self.requests])
        lines += chunked("mcLog", self.events) + ["===="]
        (folder / "MC.tla").write_text("\n".join(lines) + "\n")
        names = ["Requests", "Writes", "Owner", "Named", "Weight", "Client", "Log"]
        config = ["SPECIFICATION Spec", "CHECK_DEADLOCK FALSE", "INVARIANTS Follows Server1 Order2 Stuck4 Upgrades9", "CONSTANTS"]
        (folder / "MC.cfg").write_text("\n".join(config + [f"  {name} <- mc{name}" for name in names]) + "\n")


def batches(found):
    """Small segments together, so that TLC starts seldom."""
    batch, size = [], 0
    for segment in sorted(found, key=len, reverse=True):
        if batch and size + len(segment) > EVENTS:
            yield batch
            batch, size = [], 0
        batch.append(segment)
        size += len(segment)
    if batch:
        yield batch


def numbers_of(found):
    moments = [record["at"] for segment in found for record in segment]
    tokens = [n for segment in found for record in segment for _, _, n in record["notes"] if n > 1]
    return Numbers(min(moments + tokens) - 1_000_000)


def walked(batch, numbers, prepared, tlc):
    """None if all is as specified; otherwise what TLC said, and what was wrong of which call."""
    with tempfile.TemporaryDirectory(prefix="fairlock-trace-") as temporary:
        folder = pathlib.Path(temporary)
        prepared(folder)
        made = Batch(batch, numbers)
        made.write(folder)
        said = tlc(folder, "MC", quiet=True)
    steps = re.findall(r"(\d+) distinct states found", said)
    if "No error has been found" in said and int(steps[-1]) == len(made.events) + 1:
        return None
    wrong = re.findall(r"/\\ wrong = (<<.*?>>)\n(?:/\\|\n)", said, re.S)
    what = re.findall(r"^Error: .*", said, re.M)
    return (what or [said[-2000:]])[0], wrong[-1] if wrong else said[-3000:]


def traced(path, prepared, tlc):
    found, left_out = segments(path)
    numbers, calls, checked = numbers_of(found), sum(map(len, found)), 0
    for batch in batches(found):
        wrong = walked(batch, numbers, prepared, tlc)
        if wrong:
            print(f"spec: the journal is no behaviour of the specification: {wrong[0]}\n{wrong[1]}")
            return 1
        checked += sum(map(len, batch))
        print(f"spec: {checked:,} of {calls:,} calls are as specified", flush=True)
    locks = {segment[0]["lock"] for segment in found}
    print(f"spec: {len(found):,} histories of {len(locks):,} locks follow the specification; "
          f"{left_out:,} calls behind a loss left out")
    return 0


def forged(path, prepared, tlc, wanted):
    """Puts known mistakes into the journals, and sees each one refused at that call. A short journal may have no call for some."""
    from mutants import JOURNALS
    found, _ = segments(path)
    numbers, caught, wrong = numbers_of(found), 0, 0
    for name, mistake, change in JOURNALS:
        if wanted and not any(word in name for word in wanted):
            continue
        segment = next(filter(None, (first_changed(segment, change) for segment in sorted(found, key=len))), None)
        if not segment:
            print(f"spec: NO CALL FOR IT: {name}", flush=True)
            continue
        refused = walked([segment], numbers, prepared, tlc)
        right = refused and re.match(rf'<<\s*{segment[-1]["line"]},\s*{{[^}}]*"{mistake}"', refused[1])
        caught += bool(right)
        wrong += not right
        print(f"spec: {'caught' if right else 'NOT AS EXPECTED'}: {name}", flush=True)
        if refused and not right:
            print(refused[1])
    print(f"spec: {caught} of {len(JOURNALS)} mistakes in a journal were caught")
    # Few journals have a call for each of them.
    return wrong or not caught or (not wanted and caught < len(JOURNALS) - 2)


def first_changed(segment, change):
    """The calls up to the first one that the change fits, with that one changed."""
    holds = set()
    for n, record in enumerate(segment):
        changed = change(record, holds)
        if changed:
            return [*segment[:n], {**record, **changed}]
        for what, request, _ in record["notes"]:
            if what == "granted":
                holds.add(request)
            elif what != "cut":
                holds.discard(request)
    return None
