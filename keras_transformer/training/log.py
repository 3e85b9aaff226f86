"""The log of a run, log.csv: a line an epoch."""

import csv
import math
import os
from pathlib import Path

import keras

from keras_transformer.training.checkpoint import write_atomically


class Log(keras.callbacks.Callback):
    """Adds a line after each epoch. Keras's CSVLogger keeps the file open, for ever if `fit` fails.

    Args:
        path: the CSV file.
    """

    def __init__(self, path: Path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        row = {"epoch": epoch, "val_bleu": math.nan, **logs}
        with open(self.path, "a+", newline="") as file:
            file.seek(0)
            names = next(csv.reader(file), None)
            file.seek(0, os.SEEK_END)
            if names is None:
                names = ["epoch", *sorted(row.keys() - {"epoch"})]
                csv.writer(file, lineterminator=os.linesep).writerow(names)
            values = [row.get(name, math.nan) for name in names]
            csv.writer(file, lineterminator=os.linesep).writerow(values)


def read_log(path: Path) -> list[dict[str, float]]:
    """The epochs of a log, oldest first; what was not measured is NaN."""
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


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
