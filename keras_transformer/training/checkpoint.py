"""Checkpoints from which a run goes on as if it had never stopped."""

import json
import os
from pathlib import Path

import numpy as np
from keras import ops

from keras_transformer.errors import InputError
from keras_transformer.models.transformer import Transformer
from keras_transformer.training.objective import Objective


def write_atomically(path: str | Path, write) -> None:
    """Calls `write` with a path beside `path`, then puts that file in place of `path` at once."""
    path = Path(path)
    # The ending stays, because Keras and NumPy look at it.
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        write(part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())  # or a power cut may leave the name without the contents
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class Checkpoints:
    """The checkpoints `step-NNNNNNNN.npz` of a directory, the oldest dropped as new ones come.

    One holds everything that the future of a run depends on: weights, optimizer slots, the states
    of the random generators and of the metrics, and the position in the data.

    Args:
        directory: where they are; made when the first one is written.
        keep: how many of them `drop_old` leaves.
    """

    def __init__(self, directory: str | Path, keep: int = 3):
        self.directory = Path(directory)
        self.keep = keep

    def paths(self) -> list[Path]:
        """The checkpoints there are, oldest first."""
        return sorted(self.directory.glob("step-*.npz"))

    def last(self) -> Path | None:
        """The newest checkpoint."""
        return next(reversed(self.paths()), None)

    def save(self, objective: Objective, batches: int, **position: float) -> None:
        """Writes a checkpoint of a compiled objective, with its position in the data.

        Args:
            objective: what is trained.
            batches: how many it has seen: the number in the checkpoint's name.
            position: what `position` is to return.
        """
        arrays = _arrays(_variables(objective))
        arrays["position"] = np.array(json.dumps(position))
        self.directory.mkdir(exist_ok=True)
        path = self.directory / f"step-{batches:08d}.npz"
        write_atomically(path, lambda part: np.savez(part, **arrays))

    def drop_old(self) -> None:
        """Deletes all but the newest checkpoints."""
        for old in self.paths()[: -self.keep]:
            old.unlink()

    def save_best(self, model: Transformer) -> None:
        """Writes the weights that were the best so far, in place of those before."""
        self.directory.mkdir(exist_ok=True)
        arrays = _arrays(model.variables)
        write_atomically(self.best, lambda part: np.savez(part, **arrays))

    @property
    def best(self) -> Path:
        """Where the best weights are."""
        return self.directory / "best.npz"

    def average(self, model: Transformer, count: int) -> list[Path]:
        """Sets the weights to the mean of the last `count` checkpoints; returns those.

        What is not trained, such as the random features of some attention, is the last one's.
        """
        paths = self.paths()[-count:]
        weights = model.trainable_variables
        sums = [0.0] * len(weights)
        for path in paths:
            self.restore_weights(model, path)
            values = [ops.convert_to_numpy(weight).astype("float64") for weight in weights]
            sums = list(map(np.add, sums, values))
        for weight, total in zip(weights, sums, strict=True):
            weight.assign(total / len(paths))
        return paths

    def position(self, path: Path) -> dict[str, float]:
        """The position in the data that a checkpoint was saved with."""
        with np.load(path) as arrays:
            return json.loads(str(arrays["position"]))

    def restore(self, objective: Objective, path: Path) -> None:
        """Sets a compiled objective, with all that belongs to it, to what a checkpoint holds."""
        _assign(_variables(objective), path)

    def restore_weights(self, model: Transformer, path: Path) -> None:
        """Sets the Transformer alone."""
        _assign(model.variables, path)


def _variables(objective):
    """All state of a compiled objective, that of its Transformer first."""
    first = objective.transformer.variables
    known = set(map(id, first))
    own = [variable for variable in objective.variables if id(variable) not in known]
    return [*first, *own, *objective.optimizer.variables, *objective.metrics_variables]


def _arrays(variables):
    return {
        f"{number:05d}": ops.convert_to_numpy(variable) for number, variable in enumerate(variables)
    }


def _assign(variables, path):
    with np.load(path) as arrays:
        values = [arrays.get(f"{number:05d}") for number in range(len(variables))]
    if any(
        value is None or value.shape != tuple(variable.shape)
        for variable, value in zip(variables, values, strict=True)
    ):
        raise InputError(
            f"{path}: this checkpoint is of another model than the config describes. Give the "
            "config it was trained with, or train into another run directory."
        )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
