"""A worker of `make torture ARGS="--python N"`: the client in Python, in the same queues as the Rust client's workers.

It obeys and reports as tests/attack/src/torture/worker.rs does; wire.rs there has the lines. It knows the workloads whose
calls this client has, and leaves out the others.
"""

import argparse
import asyncio
import json
import pathlib
import random
import sys
import time
import uuid

import fairlock
import fairlock._session
from fairlock._scripts import Script

LEASES = {"hot": 1.0, "many": 2.0, "readers": 1.0, "cancel": 1.0, "policies": 1.0, "permits": 1.0, "owners": 1.0}
TASKS = {"readers": 10, "many": 6, "cancel": 6}
LOCKS = {"many": 1000, "cancel": 3, "policies": 2}
PERMITS = 5
# As in worker.rs: only a hang takes so long.
DRAINED_WITHIN = 900.0
# As in task.rs: some rounds only try.
ROUNDS = 200
FLUSHED_EVERY = 0.02


def now_us() -> int:
    return time.monotonic_ns() // 1000


class Reporter:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.grants: dict[str, tuple[int, int]] = {}
        self.been_in: set[str] = set()

    def wrong(self, text: str) -> None:
        self.lines.append("e " + text.replace("\n", " / "))

    def granted(self, workload: str, waited_us: int) -> None:
        grants, longest = self.grants.get(workload, (0, 0))
        self.grants[workload] = grants + 1, max(longest, waited_us)
        self.been_in.add(workload)

    def flush(self) -> None:
        # Grants first, so that whoever reads that all is done has read these.
        lines = [f"g {workload} {grants} {longest}" for workload, (grants, longest) in self.grants.items()]
        lines, self.lines = lines + self.lines, []
        self.grants.clear()
        if lines:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()


def owner_of(guard: fairlock.Guard) -> int:
    """The owner's UUID, as PROTOCOL.md makes it for owners without a name."""
    _, client, number, *owner = guard._request.name.replace("r", "r:", 1).replace("w", "w:", 1).split(":")
    if owner and not owner[0].startswith("*"):
        return int(owner[0], 16)
    bits = int(client, 16)
    return (bits >> 12) << 80 | 8 << 76 | (bits & 0xFFF) << 64 | 0b10 << 62 | int(number)


class Task:
    def __init__(self, workload: str, number: int, client: fairlock.Client, seed: str, reporter: Reporter) -> None:
        self.workload, self.number, self.client, self.reporter = workload, number, client, reporter
        self.random = random.Random(f"{seed} {workload} {number}")

    def lock(self, name: str) -> fairlock.RwLock:
        if self.workload == "policies":
            first = name == "policies-0"
            policy = fairlock.Policy.WRITERS_FIRST if first else fairlock.Policy.READERS_FIRST
            return self.client.rw_lock(name, policy=policy)
        return self.client.rw_lock(name)

    async def enter(self, acquire: fairlock.Acquire, limit: float | None = None) -> fairlock.Guard | None:
        asked = now_us()
        try:
            async with asyncio.timeout(limit):
                guard = await acquire
        except TimeoutError:
            return None
        self.reporter.granted(self.workload, now_us() - asked)
        return guard

    async def inside(self, guard: fairlock.Guard | None, mode: str, most_ms: float) -> None:
        """Stays a while, says until when the guard was held, and lets go as users do."""
        if guard is None:
            return
        begun = until = now_us()
        end = begun + int(self.random.uniform(0, most_ms) * 1000)
        while True:
            # Before the look, so that what the guard says is true of it.
            now = now_us()
            if not guard.is_held():
                break
            until = now
            if now >= end:
                break
            await asyncio.sleep(min((end - now) / 1e6, 0.01))
        if until > begun:
            self.reporter.lines.append(f"h {mode} {owner_of(guard):x} {guard.fencing_token} {begun} {until} {guard.name}")
        if self.random.random() < 0.1:
            # Cancelled on its way.
            try:
                async with asyncio.timeout(self.random.uniform(0, 0.0015)):
                    await guard.release()
            except TimeoutError:
                pass
        else:
            await guard.release()

    async def plain(self, name: str, writes: int, most_ms: float) -> None:
        lock, mode = self.lock(name), "w" if self.random.randrange(100) < writes else "r"
        await self.inside(await self.enter(lock.write() if mode == "w" else lock.read()), mode, most_ms)
        await asyncio.sleep(self.random.uniform(0, most_ms / 1000))

    async def cancel(self) -> None:
        lock, limit = self.lock(f"cancel-{self.random.randrange(3)}"), self.random.uniform(0, 0.015)
        choice, mode = self.random.randrange(4), "w"
        if choice == 0:
            guard = await lock.write().try_acquire()
            if guard is not None:
                self.reporter.granted(self.workload, 0)
        elif choice == 1:
            guard, mode = await self.enter(lock.read(), limit), "r"
        elif choice == 2:
            # Sent, and cancelled before anything can have come back.
            guard = await self.enter(lock.write(), 0)
        else:
            guard = await self.enter(lock.write(), limit)
        await self.inside(guard, mode, 1)
        await asyncio.sleep(self.random.uniform(0, 0.002))

    async def permits(self) -> None:
        semaphore, permits = self.client.semaphore("permits-0", PERMITS), self.random.randint(1, PERMITS)
        acquire = semaphore.permits(permits)
        choice = self.random.randrange(4)
        if choice == 0:
            guard = await acquire.try_acquire()
        else:
            guard = await self.enter(acquire, self.random.uniform(0, 0.015) if choice == 1 else None)
        await self.inside(guard, str(permits), 4)
        await asyncio.sleep(self.random.uniform(0, 0.004))

    async def owners(self) -> None:
        """Owners that other tasks and processes use at the same time."""
        owner = uuid.UUID(int=0x4000_8000_0000_0000_0000 | self.random.randrange(4))
        lock, limit = self.lock("owners-0").with_owner(owner), self.random.uniform(0.001, 0.4)
        mode = self.random.choice("rw")
        await self.inside(await self.enter(lock.write() if mode == "w" else lock.read(), limit), mode, 2)
        await asyncio.sleep(self.random.uniform(0, 0.005))

    async def round(self) -> None:
        match self.workload:
            case "hot":
                await self.plain("hot-0", 70, 4)
            case "many":
                await self.plain(f"many-{self.random.randrange(1000)}", 60, 2)
            case "readers" if self.number == 0:
                await asyncio.sleep(self.random.uniform(0, 0.04))
                await self.plain("readers-0", 100, 3)
            case "readers":
                await self.plain("readers-0", 0, 6)
            case "policies":
                await self.plain(f"policies-{self.random.randrange(2)}", 50, 4)
            case "cancel":
                await self.cancel()
            case "permits":
                await self.permits()
            case "owners":
                await self.owners()

    def is_expected(self, error: fairlock.FairlockError) -> bool:
        """Errors that a user must expect while everything around it breaks."""
        if isinstance(error, fairlock.ServerError):
            return "OOM" in error.reply
        if isinstance(error, (fairlock.OwnerWaitingError, fairlock.OwnerReadsError)):
            return self.workload == "owners"
        return isinstance(error, (fairlock.LostError, fairlock.UnavailableError))

    async def safe_round(self) -> None:
        try:
            await self.round()
        except fairlock.FairlockError as error:
            if not self.is_expected(error):
                self.reporter.wrong(f"{self.workload}: {error!r}")
            await asyncio.sleep(0.02)
        except Exception as error:
            # Now: this process may be killed before it drains.
            self.reporter.wrong(f"{self.workload}: {error!r}")
            raise

    async def rounds(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            await self.safe_round()

    async def must_get_in(self) -> None:
        """All is quiet: a workload that this process never got in by must get in now."""
        for _ in range(ROUNDS):
            if self.workload in self.reporter.been_in:
                return
            await self.safe_round()
        if self.workload not in self.reporter.been_in:
            self.reporter.wrong(f"{self.workload}: it never got in, and not in {ROUNDS} rounds with nobody disturbing")


class Worker:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.reporter, self.stopped = args, Reporter(), asyncio.Event()
        self.clients: dict[str, fairlock.Client] = {}
        self.tasks: dict[asyncio.Task[None], str] = {}

    async def connect(self, workload: str) -> fairlock.Client:
        """Without limit, because faults go on around it."""
        while True:
            try:
                return await fairlock.Client(self.args.url, lease=LEASES[workload], label=workload).connect()
            except (fairlock.UnavailableError, fairlock.ServerError):
                await asyncio.sleep(0.05)

    async def flush_now_and_then(self) -> None:
        while True:
            self.reporter.flush()
            await asyncio.sleep(FLUSHED_EVERY)

    async def run(self) -> None:
        orders = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
        flushing = asyncio.create_task(self.flush_now_and_then())
        begun = asyncio.create_task(self.begin())
        async for line in orders:
            await begun
            match line.decode().strip():
                case "stop":
                    await self.drain()
                case "probe":
                    await self.probe()
                case "leave":
                    await asyncio.gather(*(client.close() for client in self.clients.values()))
                    self.clients.clear()
                case order:
                    self.reporter.wrong(f"what is {order!r}?")
        flushing.cancel()
        self.reporter.flush()

    async def begin(self) -> None:
        for workload in self.args.workload.split(","):
            if workload not in LEASES:
                continue
            client = self.clients[workload] = await self.connect(workload)
            for number in range(TASKS.get(workload, 4)):
                task = Task(workload, number, client, self.args.seed, self.reporter)
                self.tasks[asyncio.create_task(task.rounds(self.stopped))] = f"{workload} {number}"

    async def drain(self) -> None:
        """All is quiet: every task must come to an end."""
        self.stopped.set()
        if self.tasks:
            done, hang = await asyncio.wait(self.tasks, timeout=DRAINED_WITHIN)
            for task in hang:
                self.reporter.wrong(f"{self.tasks[task]} still waits {DRAINED_WITHIN} s after the last fault")
            for task in done:
                if (error := task.exception()) is not None:
                    self.reporter.wrong(f"{self.tasks[task]}: {error!r}")
        self.reporter.lines.append("d")

    async def probe(self) -> None:
        """All is quiet: every lock must be there for who asks, and every workload gets in by its own calls."""
        longest = 0
        for workload, client in self.clients.items():
            task = Task(workload, 0, client, "", self.reporter)
            for number in range(min(LOCKS.get(workload, 1), 3)):
                name, asked = f"{workload}-{number}", now_us()
                whole = self.client_permits(client, name) if workload == "permits" else task.lock(name).write()
                try:
                    await (await whole).release()
                except fairlock.FairlockError as error:
                    self.reporter.wrong(f"{name}, with nobody disturbing: {error}")
                longest = max(longest, now_us() - asked)
            await task.must_get_in()
        self.reporter.lines.append(f"p {longest}")

    @staticmethod
    def client_permits(client: fairlock.Client, name: str) -> fairlock.Acquire:
        return client.semaphore(name, PERMITS).permits(PERMITS)


def send_these(path: str) -> None:
    """The client sends the scripts of this file, by their texts: they keep the journal that the judge reads."""
    texts = json.loads(pathlib.Path(path).read_text())

    def scripts(flagged: bool) -> dict[str, Script]:
        return {name: Script.of(both[flagged]) for name, both in texts.items()}

    async def load(*_: object) -> None:
        return None

    fairlock._session.scripts = scripts
    fairlock._session.Session._load = load  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser()
    for option in ("url", "store", "seed", "workload", "scripts", "sabotage"):
        parser.add_argument(f"--{option}")
    args = parser.parse_args()
    send_these(args.scripts)
    asyncio.run(Worker(args).run())


if __name__ == "__main__":
    main()
