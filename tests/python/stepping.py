"""Disturbs a task at each of its awaits, one run for each. Python users meet that as time limits and closed groups."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any

# A job of fewer awaits than that ends by itself.
MOST_STEPS = 60

Act = Callable[[asyncio.Task[Any]], object]


class Step:
    """Awaits a job. At the await number `at` it acts: before what the job waits for has come, or just after."""

    def __init__(self, act: Act, job: Awaitable[Any], at: int, late: bool) -> None:
        self._act, self._job, self._at, self._late = act, job, at, late
        self.reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        steps: Any = self._job.__await__()
        count, error = 0, None
        while True:
            try:
                waits_for = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            count += 1
            if count == self._at:
                self.reached = True
                if self._late and waits_for is not None:
                    # Before the task hears of it: its callback is added later.
                    waits_for.add_done_callback(lambda _: self._act(task))
                else:
                    loop.call_soon(self._act, task)
            try:
                yield waits_for
                error = None
            except BaseException as raised:
                error = raised


async def cancelled_at_each_await(job: Callable[[], Awaitable[Any]], then: Callable[[str], Awaitable[None]]) -> int:
    """The job's task is cancelled: see `at_each_await`."""
    return await at_each_await(lambda task: task.cancel(), job, then)


async def at_each_await(act: Act, job: Callable[[], Awaitable[Any]], then: Callable[[str], Awaitable[None]]) -> int:
    """Runs the job again and again, and acts on its task one await later each time, until one run is not acted on.

    `then` follows each run, and is told which it was. Returns how many awaits there were.
    """
    most = 0
    for late in (False, True):
        for at in range(1, MOST_STEPS + 1):
            step = Step(act, job(), at, late)

            async def run(step: Step = step) -> None:
                await step

            task = asyncio.create_task(run())
            ended = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
                raise AssertionError(f"await {at}, late: {late}") from ended
            await then(f"await {at}, late: {late}, cancelled: {task.cancelled()}")
            if not step.reached:
                break
            most = max(most, at)
        else:
            raise AssertionError(f"more than {MOST_STEPS} awaits")
    return most
