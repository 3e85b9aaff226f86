"""Pictures of what a model does."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from keras import ops
from matplotlib.figure import Figure

from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import BEGIN, END, Tokenizer

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


def plot_cross_attention(
    model: Transformer, tokenizer: Tokenizer, source: str, target: str, path: str | Path
) -> None:
    """Draws each decoder layer's cross-attention, the mean of its heads, for one sentence pair."""
    source_ids, target_ids = tokenizer.encode([source, target])
    source_ids.append(END)
    scores = model.attention_scores(
        ops.array([source_ids], "int32"), ops.array([[BEGIN, *target_ids]], "int32")
    )
    maps = [np.mean(ops.convert_to_numpy(layer)[0], axis=0) for layer in scores["cross"]]
    plot_attention(
        path,
        maps,
        source=tokenizer.pieces(source_ids),
        target=tokenizer.pieces([*target_ids, END]),  # a row is labelled with what it writes
        titles=[f"decoder layer {height}, mean of heads" for height in range(1, len(maps) + 1)],
    )


CURVES = {  # a panel each: what is drawn of a log, and its name
    "loss": {"loss": "training", "val_loss": "validation"},
    "accuracy of tokens": {"accuracy": "training", "val_accuracy": "validation"},
    "BLEU": {"val_bleu": "validation"},
}


def plot_curves(path: str | Path, epochs: Sequence[dict[str, float]]) -> None:
    """Draws loss, accuracy and, if it is there, BLEU by epoch.

    Args:
        path: where the picture goes; its ending says which format.
        epochs: what was measured in each, as the run's log has it; NaN for nothing.
    """
    columns = {name: [epoch[name] for epoch in epochs] for name in epochs[0]}
    panels = {
        title: [name for name in curves if not all(map(math.isnan, columns.get(name, [])))]
        for title, curves in CURVES.items()
    }
    panels = {title: names for title, names in panels.items() if names}
    figure = Figure(figsize=(4 * len(panels), 3), layout="constrained", dpi=120)
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
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path)
