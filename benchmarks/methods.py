"""What each training method gives: the same few epochs from the same weights, with one line more.

    python benchmarks/methods.py CONFIG BASE --source VAL.en --reference VAL.de [--output TABLE.md]

BASE is a run of the config that has learned for a while, and has not cooled down: with its last
weights (`final_weights=last`, or a run that was stopped) each row begins. All rows have the same
number of epochs, over which the learning rate falls to zero, and the average of their checkpoints
is scored. A method that takes longer is given more time: the table tells how many minutes of a core
the training took, which other work beside it hardly changes. What has been trained already is not
trained again.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from machine import machine  # beside this file

# Of the places, from the first batch on: a few epochs have no time for a decay.
QUARTER = ["methods.sampling_k=0.75", "methods.sampling_c=0"]
METHODS = {
    "nothing more": [],
    "R-Drop": ["methods.r_drop=5"],
    "scheduled sampling, two passes": ["methods.target_input=two_pass", *QUARTER],
    "scheduled sampling, parallel": ["methods.target_input=parallel", *QUARTER],
    "scheduled sampling, in sequence": ["methods.target_input=sequential", *QUARTER],
    "free running": ["methods.target_input=free_running"],
    "guided attention": ["methods.guided_attention=0.1"],
    "word dropout of the source": ["methods.source_word_dropout=0.1"],
    "word dropout of the target": ["methods.target_word_dropout=0.1"],
    "no subword regularisation": ["methods.subword_regularization=0"],
    "subword regularisation of both sides": ["methods.regularized=both"],
    "moving average": ["training.final_weights=ema", "training.ema_momentum=0.98"],
    "two batches an update": ["training.accumulate_batches=2"],
    "Adam": ["training.optimizer=adam"],
    "distillation from BASE": ["data.train={distilled}"],
}  # fmt: skip
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
    parsed = parser.parse_args()
    parsed.runs.mkdir(parents=True, exist_ok=True)
    lines = [
        f"| {parsed.epochs} epochs more, seed 1 | line | core minutes | BLEU | chrF |",
        "|---|---|--:|--:|--:|",
    ]
    print(*lines, sep="\n", flush=True)
    for name in parsed.only:
        minutes, scores = train_and_score(parsed, name, METHODS[name])
        line = " ".join(METHODS[name]).format(distilled="distilled.tsv")
        lines.append(f"| {name} | {line and f'`{line}`'} | {minutes} | {' | '.join(scores)} |")
        print(lines[-1], flush=True)
    lines += ["", machine("tensorflow", "keras")]
    if parsed.output:
        parsed.output.write_text("\n".join(lines) + "\n", "utf-8")


def train_and_score(parsed, name, overrides):
    """A row: the minutes of a core that its training took, and its BLEU and chrF."""
    run = parsed.runs / name.replace(" ", "_").replace(",", "")
    distilled = parsed.runs / "distilled.tsv"
    if "{distilled}" in "".join(overrides):
        command = [*OURS, "distill", parsed.base, "--output", distilled, "--resume"]
        subprocess.run(command, check=True)
        overrides = [override.format(distilled=distilled) for override in overrides]
    if not (run / "model.keras").exists():
        common = {
            "start_from": parsed.base, "epochs": parsed.epochs, "cooldown_epochs": parsed.epochs,
            "average_checkpoints": parsed.epochs, "bleu_epochs": 0, "max_minutes": 0,
            "warmup_steps": 50,
        }  # fmt: skip
        given = [f"training.{field}={value}" for field, value in common.items()]
        command = [*OURS, "train", parsed.config, *given, *overrides, "--run-dir", run, "--resume"]
        before = os.times()
        with run.with_suffix(".log").open("a") as log:
            subprocess.run(command, check=True, stdout=log)
        took = os.times()
        seconds = took.children_user + took.children_system
        seconds -= before.children_user + before.children_system
        (run / "core_minutes").write_text(f"{seconds / 60:.1f}")
    command = [*OURS, "evaluate", run, "--tokenize", parsed.tokenize]
    command += ["--source", parsed.source, "--reference", parsed.reference]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    scores = re.search(r"BLEU ([\d.]+)  chrF ([\d.]+)", said).groups()
    return (run / "core_minutes").read_text(), scores


if __name__ == "__main__":
    main()
