"""Ten tasks bill one customer: `python invoice.py [URL]`. They enter in the order in which they asked."""

import asyncio
import os
import sys

import fairlock


async def bill(client: fairlock.Client, number: int, entered: list[tuple[int, int]]) -> None:
    async with client.rw_lock("invoice:42").write() as guard:
        async with guard.while_held():  # is cancelled if the lock is lost
            entered.append((number, guard.fencing_token))
            await asyncio.sleep(0.01)


async def main(url: str) -> None:
    async with fairlock.Client(url, label="billing") as client:
        entered: list[tuple[int, int]] = []
        async with asyncio.TaskGroup() as tasks:
            for number in range(10):
                tasks.create_task(bill(client, number, entered))
        numbers, tokens = zip(*entered)
        assert list(numbers) == list(range(10)), numbers
        assert list(tokens) == sorted(set(tokens)), tokens
        print("ten tasks entered in their order, each with a greater token")

        lock = client.rw_lock("invoice:42")
        async with lock.read(), lock.read():
            assert await lock.write().try_acquire() is None
            try:
                async with asyncio.timeout(0.1):
                    await lock.write()
            except TimeoutError:
                print("two readers are inside, so a writer gave up after 0.1 s")

        gpus = client.semaphore("gpu", 4)
        async with gpus.permits(3):
            assert await gpus.permits(2).try_acquire() is None
            print("3 of 4 permits are taken, so nobody gets two")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")))
