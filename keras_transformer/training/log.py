"""The log of a run, log.csv: a line an epoch."""

import csv
import os
from pathlib import Path

from keras_transformer.training.checkpoint import write_atomically


def read_log(path: Path) -> list[dict[str, float]]:
    """The epochs of a log, oldest first; what was not measured is NaN."""
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return [
            {name: float("nan" if value == "NA" else value) for name, value in row.items()}
            for row in csv.DictReader(file)
        ]


def forget_epochs(path, first):
    """Takes the lines of epoch `first` and later ones out of a CSV log: they will come again."""
    if not path.exists():
        return
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    # The kill may have come before the heading, or in the middle of the last line.
    whole = [row for row in rows[1:] if len(row) == len(rows[0])]
    rows = rows[:1] + [row for row in whole if int(row[0]) < first]

    def write(part):
        with open(part, "w", newline="") as file:
            csv.writer(file, lineterminator=os.linesep).writerows(rows)

    write_atomically(path, write)
