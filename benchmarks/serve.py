"""Serving speed: 64 clients at once, beside no batching and beside no server.

    python benchmarks/serve.py [--preset base] [--rounds 3] [--seconds 20] [--output serve.md]

Sentences have 4 to 24 words, as captions have, drawn anew for each request. (a) is the same server
with batches of one. (b) is the SavedModel in a process of its own, without a server, with such
sentences in batches of the mean size that the server made, all of like length: the most that could
be had. The three take turns, and the best round of each counts. Everything stays on this machine,
and ends by itself.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from decode import make_model, make_words  # beside this file
from keras_transformer_server.process import ServerProcess
from machine import machine  # beside this file

CLIENTS = 64
REPLICAS = os.cpu_count()
WORDS = make_words()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="base")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--output", help="write the table to this file as well")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.worker:
        work(*parsed.worker)
        return
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        subprocess.run(
            [sys.executable, __file__, "--worker", "export", f"{parsed.preset}:{directory}"],
            check=True, stdout=sys.stderr,
        )  # fmt: skip
        servers = {
            "server": stack.enter_context(serving(directory)),
            "(a) no batching": stack.enter_context(serving(directory, "--max-batch-size", "1")),
        }
        direct = stack.enter_context(worker(directory))
        lines = report(parsed, measure(servers, direct, parsed.rounds, parsed.seconds))
    print(*lines, sep="\n")
    if parsed.output:
        lines += ["", machine("tensorflow", "keras")]
        Path(parsed.output).write_text("\n".join(lines) + "\n")


def measure(servers, direct, rounds, seconds):
    """The best round of each: requests and tokens a second, latencies, batch size."""
    best = {}
    for number in range(rounds + 1):  # the first is for warming up
        found = {name: asyncio.run(load(*ports, seconds)) for name, ports in servers.items()}
        size = round(found["server"]["batch"])
        print(json.dumps([size, seconds]), file=direct.stdin, flush=True)
        found["(b) in process"] = json.loads(direct.stdout.readline())
        for name, result in found.items():
            print(f"{name}: {result}", file=sys.stderr, flush=True)
            if number and result["tokens"] > best.get(name, {"tokens": 0})["tokens"]:
                best[name] = result
    return best


def report(parsed, best):
    lines = [
        f"| {parsed.preset}, {CLIENTS} clients | sentences/s | tokens/s | p50 ms | p99 ms | "
        "rows in a batch | server is |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, one in best.items():
        ratio = best["server"]["tokens"] / one["tokens"]
        latency = [f"{1000 * one[key]:.0f}" if key in one else "" for key in ("p50", "p99")]
        lines.append(
            f"| {name} | {one['requests']:.1f} | {one['tokens']:,.0f} | {' | '.join(latency)} | "
            f"{one['batch']:.1f} | {ratio:.2f} x |"
        )
    return lines


@contextlib.contextmanager
def serving(directory, *flags):
    """A server; yields its two ports."""
    with ServerProcess(directory, "--replicas", REPLICAS, *flags) as server:
        yield server.port, server.rest_port


@contextlib.contextmanager
def worker(directory):
    process = subprocess.Popen(
        [sys.executable, __file__, "--worker", "direct", directory],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait()


def sentence(chance):
    return " ".join(chance.choices(WORDS, k=chance.randint(4, 24)))


async def load(port, rest_port, seconds):
    """What the clients see of a server."""
    from keras_transformer_client import AsyncClient

    answers = []  # when, how long it took, tokens
    async with AsyncClient(f"127.0.0.1:{port}", timeout=120) as client:

        async def ask(number):
            chance = random.Random(number)
            while True:
                asked = time.perf_counter()
                found = await client.predict("serving_default", text=[sentence(chance)])
                now = time.perf_counter()
                answers.append((now, now - asked, int(found["lengths"].sum())))

        asking = [asyncio.create_task(ask(number)) for number in range(CLIENTS)]
        await asyncio.sleep(seconds / 2)  # until the load is steady
        before, began = executions(rest_port), time.perf_counter()
        await asyncio.sleep(seconds)
        took, after = time.perf_counter() - began, executions(rest_port)
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    answers = [answer for answer in answers if began <= answer[0] <= began + took]
    latencies = sorted(answer[1] for answer in answers)
    rows, batches = (now - then for now, then in zip(after, before, strict=True))
    return {
        "requests": len(answers) / took,
        "tokens": sum(answer[2] for answer in answers) / took,
        "p50": latencies[len(latencies) // 2],
        "p99": latencies[int(0.99 * len(latencies))],
        "batch": rows / batches,
    }


def executions(rest_port):
    """Rows that a server has run, and in how many executions."""
    url = f"http://127.0.0.1:{rest_port}/monitoring/prometheus/metrics"
    with urllib.request.urlopen(url) as response:
        text = response.read().decode()
    return [
        float(re.search(rf"^keras_transformer_batch_size_{what} (\S+)", text, re.MULTILINE)[1])
        for what in ("sum", "count")
    ]


def work(kind, argument):
    if kind == "export":
        export(*argument.split(":"))
    else:
        direct(argument)


def export(preset, directory):
    """A model with random weights: it writes as many tokens as it may, 2 S + 16."""
    import keras_transformer as kt

    kt.export(*make_model(preset), directory, kt.DecodingConfig(beams=1))


def direct(directory):
    """Runs batches of the size that it is told, as many at a time as a server does."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 its ops

    from keras_transformer.training.memory import keep_freed_memory

    keep_freed_memory()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(REPLICAS)
    translate = tf.saved_model.load(f"{directory}/1").signatures["serving_default"]
    for line in sys.stdin:
        size, seconds = json.loads(line)
        chance = random.Random(1)
        lines = sorted((sentence(chance) for _ in range(1000 // size * size)), key=len)
        batches = [lines[first : first + size] for first in range(0, len(lines), size)]
        chance.shuffle(batches)
        done, began = [], time.perf_counter()

        def run(_, size=size, batches=batches, done=done, began=began, seconds=seconds):
            while time.perf_counter() - began < seconds:
                found = translate(text=tf.constant(batches[len(done) % len(batches)]))
                done.append((size, int(found["lengths"].numpy().sum())))

        with concurrent.futures.ThreadPoolExecutor(REPLICAS) as threads:
            list(threads.map(run, range(REPLICAS)))
        took = time.perf_counter() - began
        requests, tokens = (sum(column) / took for column in zip(*done, strict=True))
        print(json.dumps({"requests": requests, "tokens": tokens, "batch": size}), flush=True)


if __name__ == "__main__":
    main()
