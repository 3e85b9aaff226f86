"""Key and value slots of a fixed number: where a step leaves what later steps look at."""

import contextlib
import contextvars

from keras import ops

from keras_transformer import masks


def make(batch_size, num_heads, length, head_dim, dtype):
    """Empty slots [B, H, length, K]."""
    make, _ = _how.get()
    return make((batch_size, num_heads, length, head_dim), dtype)


def write(slots, value, index):
    """Puts a value [B, H, 1, K] into the slots at the place `index`."""
    _, write = _how.get()
    return write(slots, value, index)


@contextlib.contextmanager
def handled(make=None, write=None):
    """Within it, slots are made and written by other functions.

    Which way is fast depends on who runs the graph, and what is fast for one does not run on
    another: the exporter knows.
    """
    token = _how.set((make or ops.zeros, write or _select))
    try:
        yield
    finally:
        _how.reset(token)


def _select(slots, value, index):
    # Copies all slots, but runs anywhere. ops.slice_update, which would not, needs an XLA compiler
    # on TensorFlow.
    here = (masks.positions(ops.shape(slots)[2]) == index)[None, None, :, None]  # [1, 1, length, 1]
    return ops.where(here, value, slots)


_how = contextvars.ContextVar("how slots are made and written", default=(ops.zeros, _select))
