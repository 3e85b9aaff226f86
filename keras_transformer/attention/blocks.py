"""Sequences cut into blocks: what lets a place look at its neighbours alone."""

from keras import ops

from keras_transformer import masks

SMALLEST = 16  # places in a block: with fewer, a product of two blocks is not worth its overhead


def cut(x, size):
    """[B, H, N, ...] -> [B, H, N / size, size, ...], the last block filled up with zeros."""
    length = ops.shape(x)[2]
    blocks = -(-length // size)
    padding = [[0, 0]] * len(x.shape)
    padding[2] = [0, blocks * size - length]
    rest = [ops.shape(x)[axis] for axis in range(3, len(x.shape))]
    return ops.reshape(ops.pad(x, padding), (*ops.shape(x)[:2], blocks, size, *rest))


def join(x, length):
    """The other way round: [B, H, blocks, size, ...] -> [B, H, N, ...]."""
    rest = [ops.shape(x)[axis] for axis in range(4, len(x.shape))]
    return take(ops.reshape(x, (*ops.shape(x)[:2], -1, *rest)), 0, length)


def take(x, first, count, axis=2):
    """x[:, :, first : first + count], or the like along another axis, with a faster gradient.

    That of an index takes TensorFlow 2.21 some 5 ns a number on a processor: twice as long as all
    else that a window costs. That of a slice is a pad.
    """
    start, shape = [0] * len(x.shape), list(ops.shape(x))
    start[axis], shape[axis] = first, count
    return ops.slice(x, start, shape)


def windows(of_queries, of_keys, before, after):
    """Blocks of queries, and for each the keys that its queries may have in their windows.

    Args:
        of_queries, of_keys: lists of what belongs to the N queries and keys, [B, H, N, ...] each.
        before, after: how many places a window reaches back and ahead.

    Returns:
        The list of [B, H, blocks, size, ...], that of [B, H, blocks, num_keys, ...], and the
        distances [size, num_keys] from a query of a block to a key.
    """
    # A window may be longer than the sequence, and a block need not be.
    length = ops.shape(of_keys[0])[2]
    size = at_most(max(before, after, SMALLEST), length, at_least=SMALLEST)
    num_keys = (3 if after else 2) * size
    distance = masks.positions(num_keys)[None, :] - size - masks.positions(size)[:, None]
    return (
        [cut(x, size) for x in of_queries],
        [_with_neighbours(cut(x, size), after > 0) for x in of_keys],
        distance,
    )


def _with_neighbours(blocks, after):
    """Each block with the one before it and, where asked, the one after; beyond the ends zeros."""
    padding = [[0, 0]] * len(blocks.shape)
    padding[2] = [1, 1 if after else 0]
    padded = ops.pad(blocks, padding)
    count, parts = ops.shape(blocks)[2], 3 if after else 2
    return ops.concatenate([take(padded, part, count) for part in range(parts)], axis=3)


def reorder(x, order):
    """The places of x [B, H, N, ...] in an order [B, H, N]."""
    batch_size, num_heads, length = ops.shape(x)[:3]
    rest = [ops.shape(x)[axis] for axis in range(3, len(x.shape))]
    first = ops.arange(batch_size * num_heads, dtype="int32")[:, None] * length
    places = ops.reshape(ops.cast(order, "int32"), (-1, length)) + first
    flat = ops.take(ops.reshape(x, (-1, *rest)), ops.reshape(places, (-1,)), axis=0)
    return ops.reshape(flat, (batch_size, num_heads, length, *rest))


def at_most(number, length, at_least=1):
    """A number, or a length that is smaller but not below `at_least`; an int where both are."""
    if isinstance(length, int):
        return min(number, max(length, at_least))
    if not ops.is_tensor(length):  # a symbol of JAX, while a model is made for any length
        return number
    return ops.minimum(number, ops.maximum(length, at_least))
