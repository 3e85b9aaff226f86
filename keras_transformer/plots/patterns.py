"""Pictures of patterns: which place sees which."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from keras_transformer.plots.file import save
from keras_transformer.plots.shades import root

INCHES = 2.3  # of a map with its title


def plot_patterns(path: str | Path, maps: Mapping[str, np.ndarray]) -> None:
    """Draws the patterns of attention side by side: a row of a map a place that looks.

    Unlike `plot_attention`, it has no tokens at the axes, and the shades of each map have a scale
    of their own, with the square root of the weights: blue, or red where a weight is negative.

    Args:
        path: where the picture goes, a .png or .svg file.
        maps: by title, the weights [T, S].

    Example:

    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from keras_transformer.plots import plot_patterns
    >>> maps = {"whole sequence": np.ones((6, 6)), "causal": np.tri(6)}
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "patterns.svg")
    ...     plot_patterns(path, maps)
    ...     "whole sequence" in path.read_text("utf-8")
    True
    """
    lines = 1 + max(title.count("\n") for title in maps)
    size = (INCHES * len(maps), INCHES + 0.15 + 0.16 * lines)
    figure = Figure(figsize=size, layout="constrained")
    all_axes = figure.subplots(1, len(maps), squeeze=False)[0]
    for axes, (title, weights) in zip(all_axes, maps.items(), strict=True):
        shade = root(weights / (np.max(np.abs(weights)) or 1.0))
        axes.imshow(shade, cmap="RdBu", vmin=-1.0, vmax=1.0, interpolation="none")
        axes.set_title(title, fontsize=8)
        rows, columns = weights.shape
        axes.set_xticks(np.arange(0.5, columns - 1), minor=True)
        axes.set_yticks(np.arange(0.5, rows - 1), minor=True)
        axes.grid(which="minor", color="0.9", linewidth=0.4)
        axes.tick_params(which="both", length=0)
        axes.set(xticks=[], yticks=[])
        axes.set_xlabel("looks at", fontsize=7)
    all_axes[0].set_ylabel("place that looks", fontsize=7)
    save(figure, path)
