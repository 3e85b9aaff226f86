"""Time, memory and use of every attention mechanism.

    python benchmarks/attention.py cost [--lengths 256 ... 16384] [--only local dot]
    python benchmarks/attention.py recall [--lengths 32 128] [--only local dot]

`cost` runs one head of 64 components over one sequence, forward and backward, and writes the best
time of two or more and the peak of the memory it took, with the exponents of N in both, fitted from
1,024 on, to benchmarks/attention.md and docs/attention_cost.png.

`recall` trains two encoder layers for associative recall: the places of the first half have a key
and a value, those of the second half the same keys in another order, and each asks for its value,
which can be anywhere in the first half: what is seen of the sequence is scored. Speed, score and
memory go to benchmarks/recall.md and docs/attention_recall.png.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import attention_cost  # beside this file
import attention_recall

WHAT = {"cost": attention_cost, "recall": attention_recall}
SECONDS = 1.0  # of a measurement, at least


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--lengths", nargs="+", type=int)
    parser.add_argument("--only", nargs="+", help="names of mechanisms; nothing is then written")
    parser.add_argument("--steps", type=int, default=500, help="of training for recall")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    benchmark = WHAT[parsed.what]
    lengths = parsed.lengths or benchmark.LENGTHS
    if parsed.worker:
        for length in lengths:
            print(json.dumps(work(parsed, length)), flush=True)
        return
    results = {}
    for spec, longest in benchmark.SPECS.items():
        fits = [length for length in lengths if length <= longest]
        chosen = not parsed.only or spec in parsed.only or spec.partition("(")[0] in parsed.only
        if not (fits and chosen):
            continue
        times, peaks = (run_worker(parsed, spec, fits, memory) for memory in (False, True))
        both = [of_time | of_memory for of_time, of_memory in zip(times, peaks, strict=True)]
        results[spec] = dict(zip(fits, both, strict=True))
        print(spec, results[spec], flush=True)
    if not results:
        parser.error("nothing is measured so: no mechanism of that name, or none so long.")
    if not parsed.only:  # the tables and pictures are of all
        measured = {length for by_length in results.values() for length in by_length}
        benchmark.report(results, sorted(measured))


def run_worker(parsed, spec, lengths, memory):
    """What is measured of a mechanism, time or memory, each in a process of its own."""
    command = [sys.executable, __file__, parsed.what, "--worker", spec]
    command += ["--steps", str(parsed.steps), "--lengths", *map(str, lengths)]
    # oneDNN, which TensorFlow turns on by itself on some processors, keeps what is freed.
    settings = {"TF_ENABLE_ONEDNN_OPTS": "0"} if memory else {}
    command += ["--memory"] if memory else []
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | settings
    )
    if done.returncode:
        raise SystemExit(f"{spec}: {done.stderr[-2000:]}")
    return list(map(json.loads, done.stdout.splitlines()))


def work(parsed, length):
    """The time of a mechanism and, of `recall`, its score; or the memory that it takes."""
    steps = 0 if parsed.memory else parsed.steps
    run, score = WHAT[parsed.what].prepare(parsed.worker, length, steps)
    return {"mib": peak_memory(run)} if parsed.memory else {"seconds": best_time(run), **score}


def best_time(run):
    """The best of two or more times, in seconds."""
    from keras_transformer.training.memory import keep_freed_memory

    keep_freed_memory()  # as `train` does
    run()
    times, until = [], time.perf_counter() + SECONDS
    while len(times) < 2 or time.perf_counter() < until:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def peak_memory(run):
    """The peak of what a run adds to the process's memory, in MiB."""
    from keras_transformer.training.memory import M_MMAP_THRESHOLD

    # Tensors have pages of their own, which are gone when they are freed: what the first run has
    # freed and the process has kept would not be counted again.
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 16)
    run()
    libc.malloc_trim(0)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    run()
    return (memory("VmHWM") - before) / 1024


def memory(name):
    """A figure of the process's memory, in KiB."""
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)
    ]
    return int(line.split()[1])


if __name__ == "__main__":
    main()
