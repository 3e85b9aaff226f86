"""Key and value slots that are written where they lie, while TensorFlow or XLA runs the loop."""

import contextlib

import tensorflow as tf
from keras import ops

from keras_transformer.attention import slots


def by_tensorflow() -> contextlib.AbstractContextManager:
    """In its scope, TensorFlow writes and moves slots without copying those that stay.

    Only for loops: a state must have no reader but the next step, or that reader would see the
    future, and the slots must be made in the scope, so that they share memory with no other tensor.
    """
    written = []  # the tensors whose memory is known to be slots and nothing else

    def write(slots, value, index):
        written.append(_write(slots, value, index))
        return written[-1]

    def move(slots, rows):
        if any(slots is each for each in written):
            return _overwrite(slots, rows)
        return tf.gather(slots, rows)

    return slots.handled(make=_empty, write=write, move=move)


def by_xla() -> contextlib.AbstractContextManager:
    """In its scope, slots are written as XLA likes it; nothing else can run that."""
    return slots.handled(write=_update)


def _empty(shape, dtype):
    return tf.raw_ops.Empty(shape=tf.stack(shape), dtype=dtype, init=True)


def _write(slots, value, index):
    # A select and tensor_scatter_nd_update both copy all slots, as measured.
    shape, head_dim = tf.shape(slots), slots.shape[3]
    places = tf.range(shape[0] * shape[1]) * shape[2] + index
    rows = tf.raw_ops.InplaceUpdate(
        x=tf.reshape(slots, [-1, head_dim]),  # [B H length, K]
        i=places,
        v=tf.reshape(value, [-1, head_dim]),
    )
    return tf.ensure_shape(tf.reshape(rows, shape), slots.shape)


def _overwrite(slots, rows):
    """Copies the rows that come from elsewhere over those that nobody continues."""
    changed = tf.where(rows != tf.range(tf.size(rows)))[:, 0]
    changed = tf.cast(changed, tf.int32)
    new = tf.gather(slots, tf.gather(rows, changed))  # read before anything is written
    moved = tf.raw_ops.InplaceUpdate(x=slots, i=changed, v=new)
    return tf.ensure_shape(moved, slots.shape)


def _update(slots, value, index):
    return ops.slice_update(slots, (0, 0, index, 0), value)
