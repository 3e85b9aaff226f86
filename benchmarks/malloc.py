"""What `keep_freed_memory` gives: the time of a training step with and without it.

    python benchmarks/malloc.py

Each side runs in processes of its own, alternated; the best of each counts.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib import resources

SIDES = ("glibc's defaults", "keep_freed_memory")
PAIRS = 6_000


def measure(side: str) -> tuple[float, float]:
    """Milliseconds of a training step of the demo, and those spent in the kernel.

    Measured over the second of two epochs of `fit`.
    """
    from keras_transformer.config_file import read_config
    from keras_transformer.data.batches import Batches
    from keras_transformer.data.corpus import read_lines
    from keras_transformer.data.dates import write_dates
    from keras_transformer.text.tokenizer import Tokenizer
    from keras_transformer.training.memory import keep_freed_memory
    from keras_transformer.training.preparation import compile_objective
    from keras_transformer.training.run import with_labels

    if side == "keep_freed_memory":
        keep_freed_memory()
    config = read_config(resources.files("keras_transformer") / "demo.toml")
    with tempfile.TemporaryDirectory() as directory:
        write_dates(directory, {"train": PAIRS})
        files = f"{directory}/train.text", f"{directory}/train.iso"
        lines = (line for file in files for line in read_lines(file))
        tokenizer = Tokenizer.learn(lines, config.tokenizer.vocabulary_size, split_digits=True)
        batches = Batches(files, tokenizer, config.data.tokens_per_batch, seed=1)
        model = compile_objective(config)
        for epoch in range(2):
            began, in_kernel = time.perf_counter(), os.times().system
            model.fit(with_labels(batches.epoch(epoch)), verbose=0, shuffle=False)
        seconds = time.perf_counter() - began, os.times().system - in_kernel
        return tuple(1000 * one / batches.steps for one in seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.side:
        print(*measure(parsed.side))
        return
    best = dict.fromkeys(SIDES, (float("inf"), float("inf")))
    for _ in range(parsed.rounds):
        for side in SIDES:
            command = [sys.executable, __file__, "--side", side]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            best[side] = min(best[side], tuple(map(float, done.stdout.split())))
    for side, (step, in_kernel) in best.items():
        print(
            f"{side:20s} {step:7.1f} ms a step, {in_kernel:7.1f} ms of processor time in the kernel"
        )
    print(f"{best[SIDES[0]][0] / best[SIDES[1]][0]:.2f} times as fast")


if __name__ == "__main__":
    main()
