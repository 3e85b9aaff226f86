"""Gathers rows of like length from several requests into one execution."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import grpc

from keras_transformer_server.errors import RequestError


@dataclasses.dataclass(eq=False)
class Row:
    """One row of a request, while it waits."""

    kind: Hashable  # rows of the same kind can run together
    run: Callable[[list[Any]], list[Any]]
    value: Any
    size: int  # how many rows it stands for
    length: int
    deadline: float
    arrived: float
    result: asyncio.Future


def alike(one: int, other: int) -> bool:
    """Whether two lengths, in bytes, may share an execution, which takes as long as the longer one.

    A wider choice makes larger batches that waste more. With the measured cost of a step, that of 3
    to 7 rows and one for each row, 64 clients and lengths between 1 and 10, a quarter was the best.
    """
    return max(one, other) <= 1.25 * min(one, other) + 8


class Batcher:
    """A queue, and workers that each take what may run together and run it in a thread.

    The row that has waited longest is always next, with as many of the rows that are most like it
    as there is room for. So a short sentence is never held up inside a batch by a long one, and no
    row waits for more than the executions of what came before it.

    Args:
        pool: threads for as many executions as may go on at a time.
        replicas: how many those are.
        max_batch_size: the most rows of an execution.
        timeout: seconds that a row waits for others, though it could run.
        max_waiting: rows; more are refused.
        observe: called for each execution with its rows and the seconds that each value waited.
    """

    def __init__(self, pool, replicas, max_batch_size, timeout, max_waiting, observe):
        self.pool = pool
        self.replicas = replicas
        self.max_batch_size = max_batch_size
        self.timeout = timeout
        self.max_waiting = max_waiting
        self.observe = observe
        self._waiting: list[Row] = []  # in the order of their arrival
        self._more = asyncio.Event()
        self._turn = asyncio.Lock()
        self._workers = []

    def start(self) -> None:
        self._workers = [asyncio.create_task(self._work()) for _ in range(self.replicas)]

    async def stop(self) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    @property
    def num_waiting(self) -> int:
        return sum(row.size for row in self._waiting)

    async def submit(
        self,
        kind: Hashable,
        run: Callable[[list[Any]], list[Any]],
        values: Sequence[Any],
        lengths: Sequence[int],
        deadline: float,
        size: int = 1,
    ) -> list[Any]:
        """The result of each value, however they were split and whatever they ran with.

        Args:
            kind: values of the same kind can run together.
            run: called in a thread with values of that kind; returns a result for each.
            values: one for each row.
            lengths: how long they are.
            deadline: on `time.monotonic`; a row that has not begun by then never does.
            size: how many rows each value stands for.
        """
        self._drop()
        if self.num_waiting + size * len(values) > self.max_waiting:
            raise RequestError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self.num_waiting} rows are waiting, of {self.max_waiting} that may. "
                "Try again later, or send fewer.",
            )
        loop, now = asyncio.get_running_loop(), time.monotonic()
        rows = [
            Row(kind, run, value, size, length, deadline, now, loop.create_future())
            for value, length in zip(values, lengths, strict=True)
        ]
        self._waiting += rows
        self._more.set()
        try:
            return await asyncio.gather(*(row.result for row in rows))
        finally:  # the client has gone, or a row has failed: nobody wants the others any more
            for row in rows:
                row.result.cancel()

    async def _work(self):
        while True:
            async with self._turn:  # one worker at a time chooses
                batch = await self._next()
            await self._execute(batch)
            del batch  # or an idle worker would keep a model that is not served any more

    async def _execute(self, batch):
        """Runs a batch; each row gets a result or an error, whatever happens."""
        now = time.monotonic()
        self.observe(sum(row.size for row in batch), [now - row.arrived for row in batch])
        loop, values = asyncio.get_running_loop(), [row.value for row in batch]
        try:
            results = await loop.run_in_executor(self.pool, batch[0].run, values)
            if len(results) != len(batch):
                raise RequestError(
                    grpc.StatusCode.INTERNAL, "The model gave another number of rows than it took."
                )
        except Exception as error:
            if len(batch) > 1:  # one of them is to blame, and the others should not suffer
                for row in batch:
                    await self._execute([row])
            elif not batch[0].result.done():
                batch[0].result.set_exception(error)
            return
        for row, result in zip(batch, results, strict=True):
            if not row.result.done():
                row.result.set_result(result)

    async def _next(self):
        """The next batch, as soon as it is full or has waited long enough."""
        while True:
            self._drop()
            if self._waiting:
                batch = self._choose()
                remaining = batch[0].arrived + self.timeout - time.monotonic()
                if len(batch) == self.max_batch_size or batch[0].kind is None or remaining <= 0:
                    taken = set(batch)
                    self._waiting = [row for row in self._waiting if row not in taken]
                    return batch
            else:
                remaining = None
            self._more.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await self._more.wait()

    def _choose(self):
        """The oldest row, and those that are most like it."""
        oldest = self._waiting[0]
        if oldest.kind is None:
            return [oldest]
        others = [
            row
            for row in self._waiting[1:]
            if row.kind == oldest.kind and alike(row.length, oldest.length)
        ]
        others.sort(key=lambda row: abs(row.length - oldest.length))
        return [oldest, *others[: self.max_batch_size - 1]]

    def _drop(self):
        """Takes out what nobody waits for any more, before it costs anything."""
        now = time.monotonic()
        for row in self._waiting:
            if row.deadline <= now and not row.result.done():
                row.result.set_exception(
                    RequestError(
                        grpc.StatusCode.DEADLINE_EXCEEDED, "The deadline passed while it waited."
                    )
                )
        self._waiting = [row for row in self._waiting if not row.result.done()]
