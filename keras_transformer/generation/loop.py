"""The decoding loop: one token at a time, over any step function and state tree."""

from keras import ops, tree

from keras_transformer import masks
from keras_transformer.attention import slots


def search(step, state, strategy, begin):
    """Writes targets one place after the other until the strategy has what it wants.

    Knows nothing of the model, which is behind the step function, nor of what makes a token a good
    one, which is the strategy's: greedy, sampling or beam search.

    Args:
        step: called as step(ids [R], state, index); returns logits [R, V], the new state and, where
            the strategy records it, the alignment [B, N, S]. Rows R are N hypotheses for each of B
            sentences, the hypotheses of a sentence one after the other.
        state: a tree of tensors whose first axis is the rows.
        strategy: what to write next, and when to stop.
        begin: the id that the first step is given.

    Returns:
        What the strategy's `results` makes of it: see `Greedy` and `BeamSearch`.
    """
    carry = start(state, strategy, begin)
    carry = ops.while_loop(
        lambda index, last, state, progress: ops.logical_not(strategy.is_done(progress)),
        lambda *carry: advance(step, strategy, carry),
        carry,
    )
    return strategy.results(carry[-1])


def start(state, strategy, begin):
    """What the loop carries from place to place, before the first one."""
    progress = strategy.start()
    last = ops.full((strategy.num_rows,), begin, "int32")
    return ops.convert_to_tensor(0, "int32"), last, state, progress


def advance(step, strategy, carry):
    """Writes one place."""
    index, last, state, progress = carry
    logits, state, *alignment = step(last, state, index)
    last, rows, progress = strategy.choose(progress, index, logits, *alignment)
    if rows is not None:  # the hypotheses that these ones continue
        state = tree.map_structure(lambda x: slots.move(x, rows), state)
    return index + 1, last, state, progress


def move(record, rows):
    """The given rows of every tensor in a tree, in their order."""
    return tree.map_structure(lambda x: ops.take(x, rows, axis=0), record)


def make_record(num_rows, length, scores=False, memory_length=None):
    """What has been written so far: nothing.

    Args:
        num_rows: R.
        length: the most tokens that can be written.
        scores: whether to record the log-probability of each token.
        memory_length: S, to record what was looked at while writing each token.

    Returns:
        A dict of `ids` [R, length] and, as asked, `token_scores` [R, length] and `alignment`
        [R, length, S].
    """
    record = {"ids": ops.full((num_rows, length), masks.PADDING, "int32")}
    if scores:
        record["token_scores"] = ops.zeros((num_rows, length), "float32")
    if memory_length is not None:
        record["alignment"] = ops.zeros((num_rows, length, memory_length), "float32")
    return record


def write(record, index, values):
    """Writes a place of every row: `values` has [R, ...] for each tensor [R, length, ...]."""

    def put(written, value):
        here = masks.positions(ops.shape(written)[1]) == index  # [length]
        here = ops.reshape(here, (1, -1) + (1,) * (len(written.shape) - 2))
        return ops.where(here, value[:, None], written)

    return {name: put(written, values[name]) for name, written in record.items()}
