"""The only place where a mask is made.

One language throughout: `keep`, a bool tensor [B, S], is True where a token is there and may be
looked at. Whether a query may look at a key is then a matter of their positions.
"""

from keras import ops

PADDING = 0  # the id that fills a sequence up to the length of its batch

# Added nowhere, put in place of a score: far below any real score, yet finite, so that a row with
# nothing to look at gives a uniform average instead of NaN. Only ever used in float32.
HIDDEN = -1e9


def keep_tokens(ids):
    """True where `ids` [B, S] holds a token, False where it holds padding.

    Example:

    >>> from keras import ops
    >>> from keras_transformer import masks
    >>> ops.convert_to_numpy(masks.keep_tokens(ops.array([[5, 7, 0]]))).tolist()
    [[True, True, False]]
    """
    return ops.not_equal(ids, PADDING)


def or_all(keep, length):
    """`keep`, or where it is None a mask [1, S] that keeps all of so many places."""
    return ops.ones((1, length), "bool") if keep is None else keep


def positions(length, offset=0):
    """The positions offset, offset + 1, ... of `length` consecutive places, int32 [length]."""
    return ops.arange(length, dtype="int32") + offset


def visible(num_queries, num_keys, keep=None, causal=False, offset=0):
    """Which key each query may look at.

    Args:
        num_queries: T. The first query stands at position `offset`, the next one after it.
        num_keys: S. The first key stands at position 0.
        keep: bool [B, S] or None, the keys that are tokens.
        causal: whether a query may look at its own position and earlier ones only.
        offset: int or int tensor, the position of the first query.

    Returns:
        bool, broadcastable to [B, H, T, S], or None when every query may look at every key.

    Example:

    >>> from keras import ops
    >>> from keras_transformer import masks
    >>> ops.convert_to_numpy(masks.visible(2, 3, causal=True, offset=1))[0, 0].astype(int).tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    mask = None
    if keep is not None:
        mask = keep[:, None, None, :]  # [B, 1, 1, S]
    if causal:
        earlier = positions(num_keys)[None, :] <= positions(num_queries, offset)[:, None]
        earlier = earlier[None, None]  # [1, 1, T, S]
        mask = earlier if mask is None else ops.logical_and(mask, earlier)
    return mask


def hide(scores, mask):
    """Takes the scores [B, H, T, S] of what must not be seen out of the softmax that follows."""
    return scores if mask is None else ops.where(mask, scores, HIDDEN)
