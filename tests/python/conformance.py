"""Runs tests/conformance against a server: `python3 conformance.py HOST PORT [USER PASSWORD]`. See the README there."""

import json
import pathlib
import struct
import sys
import time
import uuid

import composed
from fairlock._names import keys, read_message
from fairlock._scripts import library, scripts
from resp import Connection, ServerError

SUITE = pathlib.Path(__file__).resolve().parents[1] / "conformance"
PATIENCE = 60.0
FORMAT = "<BBBIII6d"
NUMBERS = ["version", "policy", "flags", "reads", "writes", "waiting", "seq", "token", "first", "near", "keep", "cap"]
FLAGS = ["sole", "more", "up"]
BOUNDED = ord("n")       # the policy with two more numbers


class Failed(Exception):
    pass


def fits(pattern, reply, numbers):
    """Raises Failed unless the reply fits; notes the numbers that the pattern names."""
    if isinstance(pattern, list):
        if not isinstance(reply, list) or len(pattern) != len(reply):
            raise Failed(f"{reply!r} is not {pattern}")
        for item, value in zip(pattern, reply):
            fits(item, value, numbers)
        return
    if not isinstance(pattern, dict):
        if type(pattern) is not type(reply) or pattern != reply:
            raise Failed(f"{reply!r} is not {pattern!r}")
        return
    number = int(reply)
    conditions = {
        "from": lambda least: number >= least,
        "to": lambda most: number <= most,
        "above": lambda name: number > numbers[name],
        "is": lambda name: number == numbers[name],
        "minus": lambda name: number == -numbers[name],
        "multiple": lambda of: number % of == 0,
        "as": lambda name: True,
    }
    if not all(conditions[condition](value) for condition, value in pattern.items()):
        raise Failed(f"{number} is not {pattern}, with {numbers}")
    if "as" in pattern:
        numbers[pattern["as"]] = number


def with_number(value, n):
    if isinstance(value, str):
        return value.replace("#", str(n))
    return [with_number(item, n) for item in value] if isinstance(value, list) else value


def decoded(s):
    """The packed state by the names of its fields."""
    packed = s.encode("utf-8", "surrogateescape")
    size = struct.calcsize(FORMAT)
    fields = {name: int(number) for name, number in zip(NUMBERS, struct.unpack(FORMAT, packed[:size]))}
    flags = fields.pop("flags")
    fields.update({name: flags >> bit & 1 for bit, name in enumerate(FLAGS)})
    if fields["policy"] == BOUNDED:
        fields["limit"], fields["used"] = struct.unpack_from("<II", packed, size)
        size += 8
    return {**fields, "holder": packed[size:].decode()}


def encoded(fields):
    fields = {**fields, "flags": sum(fields[name] << bit for bit, name in enumerate(FLAGS))}
    bound = struct.pack("<II", fields["limit"], fields["used"]) if fields["policy"] == BOUNDED else b""
    return struct.pack(FORMAT, *[fields[name] for name in NUMBERS]) + bound + fields["holder"].encode()


class Run:
    """One run of a scenario, on a lock of its own."""

    def __init__(self, server, login, calls, sharded):
        self.functions, self.numbers, self.sharded = calls, {}, sharded
        self.keys = keys("fairlock", f"conformance:{uuid.uuid4()}")
        self.channels = f"{self.keys[0]}:c:" if sharded else "fairlock:c:"
        self.calls = Connection(*server, timeout=PATIENCE, **login)
        self.ear = Connection(*server, timeout=PATIENCE, **login)
        self.subscribe(*[f"{self.channels}{client}" for client in range(10)])
        if not sharded:
            self.subscribe(f"{self.keys[0]}:events")

    def subscribe(self, *channels, un=""):
        self.ear.send(("S" if self.sharded else "") + un + "SUBSCRIBE", *channels)
        for _ in channels:
            self.ear.read()

    def close(self):
        self.calls.close()
        self.ear.close()

    def step(self, step):
        same = "error" in step or step.get("keys") == "same"
        before = self.dump() if same else None
        self.act(step)
        if same and self.dump() != before:
            raise Failed("not the same keys")
        if isinstance(step.get("keys"), dict):
            self.check_keys(step["keys"])

    def act(self, step):
        first, last = step.get("for", (0, 0))
        for n in range(first, last + 1):
            one = {key: with_number(value, n) for key, value in step.items()} if "for" in step else step
            if "call" in one:
                self.call(one)
            for request in one.get("expire", []):
                self.expire(request)
            if "set" in one:
                self.set(one["set"])
            if "redis" in one:
                state, waiting, leases = self.keys
                places = {"{state}": state, "{queue}": waiting, "{leases}": leases}
                self.calls.call(*[places.get(word, word) for word in one["redis"]])

    def dump(self):
        """Returns all three keys, and when they expire; Redis 6.2 cannot say when."""
        return [self.content(key) for key in self.keys], self.expire_at()

    def expire_at(self):
        try:
            return [self.calls.call("PEXPIRETIME", key) for key in self.keys]
        except ServerError:
            return []

    def content(self, key):
        """What lies under a key, in one order: some servers bring the fields of a larger hash in another one each time."""
        if self.calls.call("TYPE", key) != "hash":
            return self.calls.call("DUMP", key)
        found = self.calls.call("HGETALL", key)
        return sorted(zip(found[::2], found[1::2]))

    def expire(self, request):
        self.calls.call("ZADD", self.keys[2], "XX", "CH", 1, request)
        self.set({"near": 1})

    def set(self, numbers):
        found = decoded(self.calls.call("HGET", self.keys[0], "s"))
        self.calls.call("HSET", self.keys[0], "s", encoded({**found, **numbers}))

    def call(self, step):
        args = [self.numbers[arg["value"]] if isinstance(arg, dict) else arg for arg in step["args"]]
        options = step.get("options", "") + ("s" if self.sharded else "")
        if step.get("listened") and self.sharded:
            self.subscribe(f"{self.keys[0]}:events")
        elif step.get("listened"):
            options += "e"
        until = time.monotonic() + (PATIENCE if step.get("until") else 0)
        while True:
            try:
                reply = self.calls.call(*self.functions[step["call"]], 3, *self.keys, options, *args)
            except ServerError as error:
                if "error" not in step or step["error"] not in str(error):
                    raise
                reply = error
            grants, events = self.hear()
            if "error" in step:
                if not isinstance(reply, ServerError):
                    raise Failed(f"no error: {reply}")
                return self.check_heard(step, grants, events)
            numbers = dict(self.numbers)
            try:
                fits(step["reply"], reply, numbers)
                break
            except Failed:
                if time.monotonic() >= until:
                    raise
                if grants or events:
                    raise Failed(f"{reply!r} came, and {grants} and {events} with it already")
        self.numbers = numbers
        if step.get("listened") and self.sharded:
            self.subscribe(f"{self.keys[0]}:events", un="UN")
        self.check_heard(step, grants, events)

    def hear(self):
        """Returns all messages that were published until now."""
        mark = f"{self.channels}0"
        self.calls.call("SPUBLISH" if self.sharded else "PUBLISH", mark, "end")
        grants, events = {}, []
        while True:
            _, channel, payload = self.ear.read()
            if channel == mark:
                return grants, events
            if channel.startswith(self.channels):
                client = channel[len(self.channels):]
                if client in grants:
                    raise Failed(f"two messages for {client}")
                grants[client] = payload
            else:
                events.append(payload)

    def check_heard(self, step, grants, events):
        expected = step.get("messages", {})
        if grants.keys() != expected.keys():
            raise Failed(f"messages came: {grants}")
        for client, payload in sorted(grants.items()):
            message = read_message(payload)
            if message is None or payload != text_of(groups(message[0])) + "\n" + self.keys[0]:
                raise Failed(f"not a message: {payload!r}")
            if isinstance(expected[client], int):
                fits(expected[client], len(message[0]), self.numbers)
            else:
                fits(expected[client], groups(message[0]), self.numbers)
        lines = [line.split(" ") for payload in events for line in payload.split("\n")[1:]]
        if len(events) != bool(step.get("events")):
            raise Failed(f"events came: {events}")
        fits(step.get("events", []), [[what, request, int(token)] for what, request, token in lines], self.numbers)

    def check_keys(self, expected):
        state, waiting, leases = self.keys
        hash_ = self.calls.call("HGETALL", state)
        hash_ = dict(zip(hash_[::2], hash_[1::2]))
        scores = self.calls.call("ZRANGE", leases, 0, -1, "WITHSCORES")
        scores = dict(zip(scores[::2], map(int, scores[1::2])))
        queue = self.calls.call("ZRANGE", waiting, 0, -1)
        seconds, micros = map(int, self.calls.call("TIME"))
        now_ms = seconds * 1000 + micros // 1000
        fits(expected["queue"], queue, self.numbers)

        def is_deadline(at, most):
            return most - 30_000 < at - now_ms <= most

        if scores.keys() != expected["leases"].keys():
            raise Failed(f"leases: {scores}")
        if not all(is_deadline(at, expected["leases"][request]) for request, at in scores.items()):
            raise Failed(f"leases at {now_ms}: {scores}")
        self.check_state(expected["state"], hash_, scores, is_deadline)
        for key in self.keys:
            if self.calls.call("PTTL", key) == -1:
                raise Failed(f"{key} does not expire")
        if "keep" in expected:
            self.check_keep(*expected["keep"], decoded(self.calls.call("HGET", state, "s")), scores)

    def check_keep(self, least, most, found, scores):
        """The keys outlive the last deadline by so many ms, and expire when the state says."""
        if not least <= found["keep"] - max([*scores.values()] or [found["near"]]) <= most:
            raise Failed(f"keep: {found}, {scores}")
        wrong = [at for at in self.expire_at() if at not in (-2, found["keep"])]
        if wrong:
            raise Failed(f"a key expires at {wrong}, and keep is {found['keep']}")

    def check_state(self, expected, hash_, scores, is_deadline):
        if not expected:
            return fits([], list(hash_), self.numbers)
        found = decoded(hash_.pop("s"))
        fits(["2", "0"], [hash_.pop("policy"), hash_.pop("seq")], self.numbers)
        version, sole, near, *_ = [found.pop(name) for name in ("version", "sole", "near", "keep", "cap")]
        fits([2, int("sole" in expected)], [version, sole], self.numbers)
        if "sole" in expected and not is_deadline(near, expected["sole"]):
            raise Failed(f"near, of the only request: {near}")
        if scores and not 0 < near <= min(scores.values()):
            raise Failed(f"near: {near}, {scores}")
        for name, number in found.items():
            fits(expected.get(name, "" if name == "holder" else 0), number, self.numbers)
        if not scores and "sole" not in expected and found["reads"] + found["writes"] == 0:
            fits(0, near, self.numbers)
        if hash_ != {name: value for name, value in expected.items() if ":" in name}:
            raise Failed(f"fields: {hash_}")


def groups(grants):
    """The groups of a message: lists of a token and its requests."""
    grouped = []
    for request, token in grants:
        if not grouped or grouped[-1][0] != token:
            grouped.append([token])
        grouped[-1].append(request)
    return grouped


def text_of(groups):
    return " ".join(str(word) for group in groups for word in group)


def check_names():
    for names in json.loads((SUITE / "names.json").read_text()):
        found = keys(names["prefix"], names["name"])
        fits([names["state"], names["queue"], names["leases"]], list(found), {})


def check_texts():
    """What the client sends is what scripts.json says."""
    for flagged in (False, True):
        if {name: script.text for name, script in scripts(flagged).items()} != composed.scripts(flagged):
            raise Failed(f"the client composes other scripts than scripts.json, flagged: {flagged}")
    if library() != composed.library():
        raise Failed("the client composes another library than scripts.json")


def by_hash(connection, flagged):
    """How to call each script: by EVALSHA."""
    return {name: ("EVALSHA", connection.call("SCRIPT", "LOAD", script.text)) for name, script in scripts(flagged).items()}


def by_name(connection):
    """How to call each script: as a function."""
    name, text = library()
    try:
        connection.call("FUNCTION", "LOAD", text)
    except ServerError as error:
        if "already exists" not in str(error):
            raise
    return {script: ("FCALL", f"{name}_{script}") for script in scripts(flagged=False)}


def main():
    server, login = (sys.argv[1], int(sys.argv[2])), {}
    if len(sys.argv) > 3:
        login = {"user": sys.argv[3], "password": sys.argv[4]}
    check_names()
    check_texts()
    connection = Connection(*server, timeout=PATIENCE, protocol=2, **login)
    hello = connection.call("HELLO")
    modern = int(hello[hello.index("version") + 1].split(".")[0]) >= 7
    passed, failed = 0, 0
    ways = [(False, by_hash(connection, flagged=False))]
    if modern:
        functions = by_name(connection)
        ways += [(True, by_hash(connection, flagged=True)), (False, functions), (True, functions)]
    for sharded, calls in ways:
        for path in sorted((SUITE / "scenarios").glob("*.json")):
            for scenario in json.loads(path.read_text()):
                run = Run(server, login, calls, sharded)
                try:
                    for step in scenario["steps"]:
                        run.step(step)
                    passed += 1
                except (Failed, ServerError) as error:
                    failed += 1
                    print(f"{path.stem}: {scenario['scenario']}: {json.dumps(step)}: {error}")
                run.close()
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
