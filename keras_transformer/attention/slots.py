"""Key and value slots of a fixed number: where a step leaves what later steps look at."""

import contextlib
import contextvars

from keras import ops

from keras_transformer import masks


def make(batch_size, num_heads, length, head_dim, dtype):
    """Empty slots [B, H, length, K]."""
    make, _, _ = _how.get()
    return make((batch_size, num_heads, length, head_dim), dtype)


def write(slots, value, index):
    """Puts a value [B, H, 1, K] into the slots at the place `index`."""
    _, write, _ = _how.get()
    return write(slots, value, index)


def move(slots, rows):
    """The slots, or another state, whose row r is the row `rows`[r] of the given ones."""
    _, _, move = _how.get()
    return move(slots, rows)


@contextlib.contextmanager
def handled(make=None, write=None, move=None):
    """Within it, slots are made, written and moved by other functions.

    Which way is fast depends on who runs the graph, and what is fast for one does not run on
    another: the exporter knows.
    """
    token = _how.set((make or ops.zeros, write or _select, move or _take))
    try:
        yield
    finally:
        _how.reset(token)


def _select(slots, value, index):
    # Copies all slots, but runs anywhere. ops.slice_update, which would not, needs an XLA compiler
    # on TensorFlow.
    here = (masks.positions(ops.shape(slots)[2]) == index)[None, None, :, None]  # [1, 1, length, 1]
    return ops.where(here, value, slots)


def _take(slots, rows):
    return ops.take(slots, rows, axis=0)


_how = contextvars.ContextVar(
    "how slots are made, written and moved", default=(ops.zeros, _select, _take)
)
