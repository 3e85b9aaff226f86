"""What runs together, what waits, and what is dropped."""

import asyncio
import concurrent.futures
import threading
import time

import grpc
import pytest
from keras_transformer_server.batcher import Batcher
from keras_transformer_server.errors import RequestError

NEVER = float("inf")


def run(scenario, replicas=1, max_batch_size=4, timeout=0.02, max_waiting=100):
    """Runs a scenario with a batcher; returns the batches that it made, as tuples of values."""
    batches = []

    async def main():
        with concurrent.futures.ThreadPoolExecutor(replicas) as pool:
            batcher = Batcher(pool, replicas, max_batch_size, timeout, max_waiting, lambda *_: None)

            def record(values):
                batches.append(tuple(values))
                return [f"<{value}>" for value in values]

            batcher.start()
            try:
                await scenario(batcher, record)
            finally:
                await batcher.stop()

    asyncio.run(main())
    return batches


def test_requests_share_an_execution_and_each_gets_its_own():
    async def scenario(batcher, record):
        both = await asyncio.gather(
            batcher.submit("a", record, ["x", "y"], [5, 5], NEVER),
            batcher.submit("a", record, ["z"], [5], NEVER),
        )
        assert both == [["<x>", "<y>"], ["<z>"]]

    assert run(scenario) == [("x", "y", "z")]


def test_a_full_batch_does_not_wait():
    async def scenario(batcher, record):
        await asyncio.wait_for(batcher.submit("a", record, list("wxyz"), [5] * 4, NEVER), 5)

    assert run(scenario, timeout=1000) == [tuple("wxyz")]


def test_a_request_that_is_too_large_for_a_batch_is_split():
    async def scenario(batcher, record):
        assert await batcher.submit("a", record, list("abcdef"), [5] * 6, NEVER) == [
            f"<{one}>" for one in "abcdef"
        ]

    assert sorted(map(len, run(scenario))) == [2, 4]


def test_long_and_short_do_not_share():
    async def scenario(batcher, record):
        await batcher.submit("a", record, ["s", "L", "t", "M"], [20, 400, 30, 450], NEVER)

    assert run(scenario) == [("s", "t"), ("L", "M")]


def test_the_nearest_in_length_come_along():
    async def scenario(batcher, record):
        lengths = [100, 120, 110, 85, 95, 105]
        await batcher.submit("a", record, list("abcdef"), lengths, NEVER)

    assert set(run(scenario)[0]) == set("aefc")


def test_other_kinds_do_not_share_and_the_oldest_goes_first():
    async def scenario(batcher, record):
        await asyncio.gather(
            batcher.submit("a", record, ["1"], [5], NEVER),
            batcher.submit("b", record, ["2"], [5], NEVER),
            batcher.submit("a", record, ["3"], [5], NEVER),
            batcher.submit(None, record, ["4"], [5], NEVER),
            batcher.submit(None, record, ["5"], [5], NEVER),
        )

    assert run(scenario) == [("1", "3"), ("2",), ("4",), ("5",)]


def busy(batcher, release):
    """Something that keeps the only replica busy until `release` is set."""
    return asyncio.create_task(
        batcher.submit(None, lambda _: [release.wait(10)], ["busy"], [0], NEVER)
    )


def test_what_comes_too_late_is_dropped_before_it_runs():
    async def scenario(batcher, record):
        release = threading.Event()
        first = busy(batcher, release)
        await asyncio.sleep(0.05)
        late = asyncio.create_task(
            batcher.submit("a", record, ["late"], [5], time.monotonic() + 0.05)
        )
        good = asyncio.create_task(batcher.submit("a", record, ["good"], [5], NEVER))
        await asyncio.sleep(0.1)
        release.set()
        with pytest.raises(RequestError) as caught:
            await late
        assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.gather(first, good)

    assert run(scenario) == [("good",)]


def test_what_nobody_waits_for_is_dropped_before_it_runs():
    async def scenario(batcher, record):
        release = threading.Event()
        first = busy(batcher, release)
        await asyncio.sleep(0.05)
        gone = asyncio.create_task(batcher.submit("a", record, ["gone"], [5], NEVER))
        good = asyncio.create_task(batcher.submit("a", record, ["good"], [5], NEVER))
        await asyncio.sleep(0.05)
        gone.cancel()
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(first, good)

    assert run(scenario) == [("good",)]


def test_more_than_may_wait_are_refused():
    async def scenario(batcher, record):
        release = threading.Event()
        first = busy(batcher, release)
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(batcher.submit("a", record, list("abc"), [5] * 3, NEVER))
        await asyncio.sleep(0.05)
        with pytest.raises(RequestError, match="3 rows are waiting, of 4") as caught:
            await batcher.submit("a", record, list("de"), [5] * 2, NEVER)
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        release.set()
        await asyncio.gather(first, waiting)

    assert run(scenario, max_waiting=4) == [tuple("abc")]


def test_a_row_that_fails_does_not_spoil_its_neighbours():
    async def scenario(batcher, record):
        def run(values):
            if "bad" in values:
                raise RequestError(grpc.StatusCode.INTERNAL, "broken")
            return record(values)

        tasks = [
            asyncio.create_task(batcher.submit("a", run, [value], [5], NEVER))
            for value in ("good", "bad", "fine")
        ]
        with pytest.raises(RequestError, match="broken"):
            await tasks[1]
        assert await tasks[0] == ["<good>"]
        assert await tasks[2] == ["<fine>"]

    run(scenario)


def test_a_model_that_loses_rows_does_not_stop_the_server():
    async def scenario(batcher, record):
        with pytest.raises(RequestError, match="another number of rows"):
            await batcher.submit("a", lambda values: values * 2, ["x"], [5], NEVER)
        assert await batcher.submit("b", record, ["x"], [5], NEVER) == ["<x>"]

    run(scenario)


def test_what_nobody_waits_for_makes_room():
    async def scenario(batcher, record):
        release = threading.Event()
        first = busy(batcher, release)
        await asyncio.sleep(0.05)
        gone = asyncio.create_task(batcher.submit("a", record, list("abcd"), [5] * 4, NEVER))
        await asyncio.sleep(0.05)
        gone.cancel()
        await asyncio.sleep(0)
        good = asyncio.create_task(batcher.submit("a", record, list("efgh"), [5] * 4, NEVER))
        await asyncio.sleep(0.05)
        release.set()
        await asyncio.gather(first, good)

    assert run(scenario, max_waiting=4) == [tuple("efgh")]


def test_one_value_may_stand_for_many_rows():
    async def scenario(batcher, record):
        with pytest.raises(RequestError, match="0 rows are waiting, of 4"):
            await batcher.submit(None, record, ["matrix"], [0], NEVER, size=5)

    run(scenario, max_waiting=4)


def test_replicas_run_side_by_side():
    async def scenario(batcher, record):
        barrier = threading.Barrier(2)
        await asyncio.gather(
            *(batcher.submit(None, lambda _: [barrier.wait(10)], [0], [0], NEVER) for _ in "ab")
        )

    run(scenario, replicas=2)
