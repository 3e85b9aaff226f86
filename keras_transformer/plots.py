"""Pictures of what a model does."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

INCHES = 0.26  # for a piece of text, so that its label can be read


def plot_attention(
    path: str | Path,
    scores: Sequence[np.ndarray],
    source: Sequence[str],
    target: Sequence[str],
    titles: Sequence[str],
) -> None:
    """Draws maps of attention side by side: a row a target piece, a column a source piece.

    Args:
        path: where the picture goes; its ending says which format.
        scores: maps [T, S].
        source: the S pieces that are looked at.
        target: the T pieces that look.
        titles: a title for each map.
    """
    size = (len(scores) * (INCHES * len(source) + 1.2), INCHES * len(target) + 1.8)
    figure = Figure(figsize=size, layout="constrained", dpi=150)
    all_axes = figure.subplots(1, len(scores), sharey=True, squeeze=False)[0]
    for axes, weights, title in zip(all_axes, scores, titles, strict=True):
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(len(source)), source, fontsize=8, rotation=90)
        axes.set_yticks(range(len(target)), target, fontsize=8)
        axes.tick_params(length=0)
        axes.set_xlabel("looks at", fontsize=8)
    all_axes[0].set_ylabel("while it writes", fontsize=8)
    figure.savefig(path)
