"""Pictures of attention: who looks at what."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from keras import ops
from matplotlib.colors import FuncNorm
from matplotlib.figure import Figure

from keras_transformer.errors import InputError
from keras_transformer.models.transformer import Transformer
from keras_transformer.plots.file import check_size, save
from keras_transformer.plots.labels import inches, shorten
from keras_transformer.plots.shades import root, square
from keras_transformer.text.tokenizer import BEGIN, END, Tokenizer
from keras_transformer.text.unknown import UnknownWords

KINDS = {  # of attention: what a token that looks is there for
    "cross": "while it writes",
    "encoder": "while it reads",
    "decoder": "while it writes",
}
POINTS = 7  # of the labels
CELL = (0.15, 0.26)  # inches: the least is room for a label in any script, the most is enough
WIDE = 6.0  # inches of a map, for which cells may become small
NAME, TITLE, GAP, BAR = 0.25, 0.3, 0.2, 0.8  # inches of the name of an axis, and so on
COLUMNS = 2  # of maps, where they are all of one layer: more would be too small on a page


def plot_attention(
    path: str | Path,
    scores: Sequence[np.ndarray],
    source: Sequence[str],
    target: Sequence[str],
    titles: Sequence[str],
    columns: int | None = None,
    writes: str = KINDS["cross"],
) -> None:
    """Draws maps of attention: a row of a map a token that looks, a column one that is looked at.

    Shades go with the square root of the weights, so that small ones are seen as well.

    Args:
        path: where the picture goes, a .png or .svg file.
        scores: maps [T, S].
        source: the S tokens that are looked at.
        target: the T tokens that look.
        titles: a title for each map.
        columns: how many maps stand side by side; by default all.
        writes: when the tokens look.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer.plots import plot_attention
    >>> weights = [[0.9, 0.1], [0.2, 0.8]]
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "attention.svg")
    ...     plot_attention(path, [weights], ["ein", "Hund"], ["a", "dog"], ["head 1"])
    ...     "Hund" in path.read_text("utf-8")
    True
    """
    columns = columns or len(scores)
    rows = -(-len(scores) // columns)
    source, target = list(map(shorten, source)), list(map(shorten, target))
    # Placed by hand, so that a cell is never smaller than its label, however many there are.
    cell = min(max(WIDE / max(len(source), len(target)), CELL[0]), CELL[1])
    map_width, map_height = cell * len(source), cell * len(target)
    left, below = NAME + inches(target, POINTS), NAME + inches(source, POINTS)
    width = left + max(map_width, inches(titles, POINTS + 2)) + GAP
    height = TITLE + map_height + below + GAP
    size = (columns * width + BAR, rows * height)
    check_size(path, *size)
    figure = Figure(figsize=size)

    def place(x, y, width, height):
        """Axes whose upper left corner is so many inches from that of the picture."""
        return figure.add_axes(
            (x / size[0], 1 - (y + height) / size[1], width / size[0], height / size[1])
        )

    shades = _shades(scores)
    for number, (weights, title) in enumerate(zip(scores, titles, strict=True)):
        row, column = divmod(number, columns)
        axes = place(column * width + left, row * height + TITLE, map_width, map_height)
        axes.set_title(title, fontsize=POINTS + 2, loc="left")
        axes.set_ylabel(writes, fontsize=POINTS)
        image = _draw_map(axes, weights, source, target, shades)
        if inches(source, POINTS) <= cell:  # single characters stand upright
            axes.tick_params(axis="x", rotation=0)
    bar = place(columns * width + 0.1, TITLE, 0.12, min(max(map_height, 1.0), 3.0))
    figure.colorbar(image, cax=bar).ax.tick_params(labelsize=POINTS)
    save(figure, path)


def plot_heads(
    path: str | Path,
    model: Transformer,
    tokenizer: Tokenizer,
    source: str,
    target: str,
    kind: str = "cross",
    layer: int | None = None,
    head: int | None = None,
) -> None:
    """Draws every head of every layer for one sentence pair: a row of maps a layer.

    Args:
        path: where the picture goes, a .png or .svg file.
        model: the model.
        tokenizer: the one that it was trained with.
        source: what the model reads.
        target: what it writes, or would have to.
        kind: "cross", "encoder" or "decoder", the latter two for self-attention.
        layer: draws this one only, counted from 1.
        head: draws this one only, likewise.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer import ModelConfig, Tokenizer, Transformer
    >>> from keras_transformer.plots import plot_heads
    >>> tokenizer = Tokenizer.learn(["to be or not to be"] * 9, vocabulary_size=11, kind="char")
    >>> model = Transformer(ModelConfig.preset("tiny", vocabulary_size=11))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "heads.svg")
    ...     plot_heads(path, model, tokenizer, "to be", "or not", layer=2)
    ...     [f"layer 2, head {head}" in path.read_text("utf-8") for head in (1, 4, 5)]
    [True, True, False]
    """
    scores, source, target = attention_maps(model, tokenizer, source, target, kind)
    maps = {
        (height, place): weights
        for height, of_layer in enumerate(scores, start=1)
        for place, weights in enumerate(of_layer, start=1)
        if layer in (None, height) and head in (None, place)
    }
    if not maps:
        raise InputError(
            f"layer {'any' if layer is None else layer}, head {'any' if head is None else head}: "
            f"the model has {len(scores)} layers of {len(scores[0])} heads there, counted from 1."
        )
    heights = {height for height, _ in maps}
    alone = len(maps) if len(heights) > 1 else COLUMNS
    plot_attention(
        path,
        list(maps.values()),
        source,
        target,
        titles=[f"layer {height}, head {place}" for height, place in maps],
        columns=min(alone, len(maps) // len(heights)),
        writes=KINDS[kind],
    )


def plot_cross_attention(
    model: Transformer, tokenizer: Tokenizer, source: str, target: str, path: str | Path
) -> None:
    """Draws each decoder layer's cross-attention, the mean of its heads, for one sentence pair."""
    scores, source, target = attention_maps(model, tokenizer, source, target)
    maps = [np.mean(of_layer, axis=0) for of_layer in scores]
    titles = [f"decoder layer {height}, mean of heads" for height in range(1, len(maps) + 1)]
    plot_attention(path, maps, source, target, titles)


def attention_maps(
    model: Transformer, tokenizer: Tokenizer, source: str, target: str, kind: str = "cross"
) -> tuple[list[np.ndarray], list[str], list[str]]:
    """What a model looks at in one sentence pair.

    Returns:
        The weights [H, T, S] of each layer, the S tokens that are looked at and the T tokens that
        look. A token of the decoder that looks is the one that is being written, of those that are
        looked at the one that was read: the end is only written, the begin only read.
    """
    unknown = UnknownWords(tokenizer, model.config.copy_words)
    words = unknown.find([source])
    most = model.config.max_length - 1  # and the end, or the begin
    source_ids, target_ids = (unknown.encode([text], words)[0][:most] for text in (source, target))
    reads = {"encoder": [*source_ids, END], "decoder": [BEGIN, *target_ids]}
    scores = model.attention_scores(
        *(ops.array([reads[side]], "int32") for side in ("encoder", "decoder"))
    )
    looked_at = reads["decoder" if kind == "decoder" else "encoder"]
    looking = reads["encoder"] if kind == "encoder" else [*target_ids, END]
    return (
        [ops.convert_to_numpy(of_layer)[0].astype("float32") for of_layer in scores[kind]],
        unknown.pieces(looked_at, words[0]),
        unknown.pieces(looking, words[0]),
    )


def _draw_map(axes, weights, source, target, shades):
    # Not resampled in an SVG: a cell is a cell, however large it is looked at.
    image = axes.imshow(weights, aspect="auto", interpolation="none", **shades)
    columns, rows = len(source), len(target)
    axes.set_xticks(range(columns), source, fontsize=POINTS, rotation=90)
    axes.set_yticks(range(rows), target, fontsize=POINTS)
    axes.tick_params(length=0, pad=2)
    axes.set_xlabel("looks at", fontsize=POINTS)
    faint = dict(color="0.9", linewidth=0.3)  # between the cells, to find a cell's labels by
    axes.vlines(np.arange(0.5, columns - 1), -0.5, rows - 0.5, **faint)
    axes.hlines(np.arange(0.5, rows - 1), -0.5, columns - 0.5, **faint)
    return image


def _shades(scores):
    """How weights become colours, the same for all maps: probabilities from 0 to 1."""
    lowest = min(np.min(weights) for weights in scores)
    largest = max(np.max(np.abs(weights)) for weights in scores)
    if lowest < -1e-3 * largest:  # weights of some mechanisms are no probabilities
        bounds, colours = (-largest, largest), "RdBu"
    else:
        bounds, colours = (0.0, max(largest, 1.0)), "Blues"
    return {"cmap": colours, "norm": FuncNorm((root, square), *bounds)}
