"""The decoding loop: one token at a time, over any step function and state tree."""

from keras import ops

from keras_transformer import masks


def decode_greedily(step, state, limits, length, begin, end):
    """Takes the most probable token at every place, from the begin id to the end id.

    Knows nothing of the model: the step function does.

    Args:
        step: called as step(ids [B], state, index); returns logits [B, V] and the new state.
        state: a tree of batch-first tensors.
        limits: int32 [B], the most tokens of each row, the end id among them.
        length: at least the largest limit.
        begin: the id that the first step is given.
        end: the id that ends a sentence.

    Returns:
        ids [B, length], each row up to and including its end id, then padding.
    """

    def unfinished(index, ids, last, finished, state):
        return ops.logical_not(ops.all(finished))

    def decode_one(index, ids, last, finished, state):
        logits, state = step(last, state, index)
        last = ops.cast(ops.argmax(logits, axis=-1), "int32")  # [B]
        last = ops.where(finished, masks.PADDING, last)
        here = (masks.positions(length) == index)[None, :]  # [1, length]
        ids = ops.where(here, last[:, None], ids)
        index = index + 1
        finished = finished | (last == end) | (index >= limits)
        return index, ids, last, finished, state

    batch_size = ops.shape(limits)[0]
    beginning = (
        ops.convert_to_tensor(0, "int32"),
        ops.full((batch_size, length), masks.PADDING, "int32"),
        ops.full((batch_size,), begin, "int32"),
        ops.zeros((batch_size,), "bool"),
        state,
    )
    return ops.while_loop(unfinished, decode_one, beginning)[1]
