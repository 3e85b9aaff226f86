"""Pictures of training: curves and the schedule of the learning rate."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from keras import ops
from matplotlib.figure import Figure

from keras_transformer.plots.file import save

CURVES = {  # a panel each: what is drawn of a log, and its name
    "loss": {"loss": "training", "val_loss": "validation"},
    "accuracy of tokens": {"accuracy": "training", "val_accuracy": "validation"},
    "BLEU": {"val_bleu": "validation"},
}
POINTS = 2000  # of a curve, more than the picture can show


def plot_curves(path: str | Path, epochs: Sequence[dict[str, float]]) -> None:
    """Draws loss, accuracy and, if it is there, BLEU by epoch.

    Args:
        path: where the picture goes, a .png or .svg file.
        epochs: what was measured in each, as the run's log has it; NaN for nothing.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer.plots import plot_curves
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "curves.svg")
    ...     plot_curves(path, [{"epoch": 0, "loss": 3.0}, {"epoch": 1, "loss": 2.0}])
    ...     "training" in path.read_text("utf-8")
    True
    """
    columns = {name: [epoch[name] for epoch in epochs] for name in epochs[0]}
    panels = {
        title: [name for name in curves if not all(map(math.isnan, columns.get(name, [])))]
        for title, curves in CURVES.items()
    }
    panels = {title: names for title, names in panels.items() if names}
    figure = Figure(figsize=(4 * len(panels), 3), layout="constrained")
    for place, (title, names) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), place)
        for name in names:
            points = [
                (epoch + 1, value)
                for epoch, value in zip(columns["epoch"], columns[name], strict=True)
                if not math.isnan(value)
            ]
            axes.plot(*zip(*points, strict=True), marker=".", label=CURVES[title][name])
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epoch", fontsize=9)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    save(figure, path)


def plot_schedule(path: str | Path, schedule: Callable, steps: int, title: str = "") -> None:
    """Draws the learning rate by update.

    Args:
        path: where the picture goes, a .png or .svg file.
        schedule: called with the numbers of updates, from 0 on; returns their learning rates.
        steps: how many updates are drawn.
        title: what stands above.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer import WarmupSchedule
    >>> from keras_transformer.plots import plot_schedule
    >>> schedule = WarmupSchedule.of_paper(d_model=512, warmup_steps=4000)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "schedule.svg")
    ...     plot_schedule(path, schedule, steps=20_000)
    ...     "highest: 6.99e-04 at update 4,000" in path.read_text("utf-8")
    True
    """
    rates = ops.convert_to_numpy(schedule(ops.arange(steps, dtype="int32")))
    peak = int(np.argmax(rates))
    drawn = np.union1d(np.linspace(0, steps - 1, POINTS).round().astype(int), peak)
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(drawn + 1, rates[drawn])
    axes.plot(peak + 1, rates[peak], "o", color="C0", markersize=4)
    axes.annotate(
        f"highest: {rates[peak]:.2e} at update {peak + 1:,}",
        (peak + 1, rates[peak]),
        xytext=(8, 0),
        textcoords="offset points",
        fontsize=8,
        va="center",
    )
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("update", fontsize=9)
    axes.set_ylabel("learning rate", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    save(figure, path)
