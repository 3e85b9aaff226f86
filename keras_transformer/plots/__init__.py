"""Pictures of what a model does, as PNG and SVG."""

from keras_transformer.plots.attention import plot_attention, plot_cross_attention, plot_heads
from keras_transformer.plots.curves import plot_curves, plot_schedule
from keras_transformer.plots.patterns import plot_patterns
from keras_transformer.plots.positions import plot_positions
from keras_transformer.plots.tree import plot_tree

__all__ = [
    "plot_attention",
    "plot_cross_attention",
    "plot_curves",
    "plot_heads",
    "plot_patterns",
    "plot_positions",
    "plot_schedule",
    "plot_tree",
]
