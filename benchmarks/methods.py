"""What each training method gives: the same few epochs from the same weights, with one line more.

    python benchmarks/methods.py CONFIG BASE --source VAL.en --reference VAL.de [--output TABLE.md]

BASE is a run of the config that has learned for a while, and has not cooled down: with its last
checkpoint each row begins. All rows have the same number of epochs, over which the learning rate
falls to zero, and the average of their checkpoints is scored. A method that takes longer is given
more time: the table tells the processor time of its step, beside that of a step with nothing more.
What has been trained already is not trained again.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

from machine import machine  # beside this file

METHODS = {
    "nothing more": [],
    "R-Drop": ["methods.r_drop=5"],
    "scheduled sampling, two passes": ["methods.target_input=two_pass", "methods.sampling_c=3e-4"],
    "scheduled sampling, parallel": ["methods.target_input=parallel", "methods.sampling_c=3e-4"],
    "scheduled sampling, in sequence": [
        "methods.target_input=sequential", "methods.sampling_c=3e-4"
    ],
    "free running": ["methods.target_input=free_running"],
    "guided attention": ["methods.guided_attention=0.1"],
    "word dropout of the source": ["methods.source_word_dropout=0.1"],
    "word dropout of the target": ["methods.target_word_dropout=0.1"],
    "no subword regularisation": ["methods.subword_regularization=0"],
    "subword regularisation of both sides": ["methods.regularized=both"],
    "moving average": ["training.final_weights=ema"],
    "the last weights": ["training.final_weights=last"],
    "two batches an update": ["training.accumulate_batches=2"],
    "Adam": ["training.optimizer=adam"],
    "distillation from BASE": ["data.train={distilled}"],
}  # fmt: skip
STEPS = 10  # whose time is measured, after two that trace
OURS = [sys.executable, "-m", "keras_transformer_cli"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config")
    parser.add_argument("base", type=Path)
    parser.add_argument("--source", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--tokenize", default="none", help="of BLEU")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.worker is not None:
        print(json.dumps(measure_step(parsed, parsed.worker)))
        return
    parsed.runs.mkdir(parents=True, exist_ok=True)
    lines = [
        f"| {parsed.epochs} epochs more, seed 1 | line | a step takes | BLEU | chrF |",
        "|---|---|--:|--:|--:|",
    ]
    print(*lines, sep="\n", flush=True)
    plain = step_seconds(parsed, [])
    for name in parsed.only:
        times = step_seconds(parsed, METHODS[name]) / plain
        scores = train_and_score(parsed, name, METHODS[name])
        line = " ".join(METHODS[name]).format(distilled="distilled.tsv")
        lines.append(f"| {name} | {line and f'`{line}`'} | {times:.2f} x | {' | '.join(scores)} |")
        print(lines[-1], flush=True)
    lines += ["", machine("tensorflow", "keras")]
    if parsed.output:
        parsed.output.write_text("\n".join(lines) + "\n", "utf-8")


def step_seconds(parsed, overrides):
    """The processor time of a training step, in a process of its own."""
    command = [sys.executable, __file__, parsed.config, parsed.base, "--source", parsed.source]
    command += ["--reference", parsed.reference, "--worker", json.dumps(overrides)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(said.splitlines()[-1])


def measure_step(parsed, overrides):
    from keras_transformer import load_run, read_config
    from keras_transformer.training.preparation import (
        compile_objective,
        make_batches,
        make_schedule,
        with_vocabulary,
    )
    from keras_transformer.training.run import with_labels

    # What a corpus says is of no matter, and the distilled one may not be there yet.
    overrides = [override for override in overrides if "{distilled}" not in override]
    _, tokenizer = load_run(parsed.base)
    config = with_vocabulary(read_config(parsed.config, overrides), tokenizer)
    batches, _ = make_batches(config, tokenizer, lambda line: None)
    objective = compile_objective(config, make_schedule(config, batches.steps))
    # The same batch again and again: a new shape could be a new trace.
    batch = with_labels(batches.stream()).take(1).cache().repeat()
    objective.fit(batch, steps_per_epoch=2, verbose=0)
    began = time.process_time()
    objective.fit(batch, steps_per_epoch=STEPS, verbose=0)
    return (time.process_time() - began) / STEPS


def train_and_score(parsed, name, overrides):
    """BLEU and chrF of a row."""
    run = parsed.runs / name.replace(" ", "_").replace(",", "")
    distilled = parsed.runs / "distilled.tsv"
    if "{distilled}" in "".join(overrides):
        subprocess.run([*OURS, "distill", parsed.base, "--output", distilled], check=True)
        overrides = [override.format(distilled=distilled) for override in overrides]
    if not (run / "model.keras").exists():
        common = {
            "start_from": parsed.base, "epochs": parsed.epochs, "cooldown_epochs": parsed.epochs,
            "average_checkpoints": parsed.epochs, "bleu_epochs": 0, "max_minutes": 0,
        }  # fmt: skip
        given = [f"training.{field}={value}" for field, value in common.items()]
        command = [*OURS, "train", parsed.config, *given, *overrides, "--run-dir", run, "--resume"]
        with run.with_suffix(".log").open("a") as log:
            subprocess.run(command, check=True, stdout=log)
    command = [*OURS, "evaluate", run, "--tokenize", parsed.tokenize]
    command += ["--source", parsed.source, "--reference", parsed.reference]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return re.search(r"BLEU ([\d.]+)  chrF ([\d.]+)", said).groups()


if __name__ == "__main__":
    main()
