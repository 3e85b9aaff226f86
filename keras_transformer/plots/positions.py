"""Pictures of position encodings."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from keras_transformer.plots.file import save


def plot_positions(path: str | Path, encodings: np.ndarray, title: str = "") -> None:
    """Draws position encodings: a row a position, a column a component.

    Args:
        path: where the picture goes, a .png or .svg file.
        encodings: [T, D].
        title: what stands above.

    Example:

    >>> import pathlib, tempfile
    >>> import keras
    >>> from keras_transformer import SinusoidalPositions
    >>> from keras_transformer.plots import plot_positions
    >>> encodings = SinusoidalPositions()(keras.ops.zeros((1, 50, 128)))[0]
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "positions.svg")
    ...     plot_positions(path, keras.ops.convert_to_numpy(encodings))
    ...     "component" in path.read_text("utf-8")
    True
    """
    largest = np.max(np.abs(encodings))
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(
        encodings, cmap="RdBu", vmin=-largest, vmax=largest, aspect="auto", interpolation="none"
    )
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("component", fontsize=9)
    axes.set_ylabel("position", fontsize=9)
    axes.tick_params(labelsize=8)
    figure.colorbar(image).ax.tick_params(labelsize=8)
    save(figure, path)
