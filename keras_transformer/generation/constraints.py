"""What may be written next."""

from keras import ops

from keras_transformer import masks
from keras_transformer.generation.top import top_k

# In place of the logit of what may not be written: below any real one, yet finite, so that sums of
# it are no NaN.
FORBIDDEN = -1e9


class Constraints:
    """Which tokens the next one is chosen from.

    Args:
        end: the id that ends a sentence.
        suppressed: ids that are never written.
        min_length: the fewest tokens before the end.
        no_repeat_ngram: no sequence of this many tokens is written twice; 0 for no limit.
        repetition_penalty: logits of tokens that have been written are divided by this number where
            they are positive, else multiplied (Keskar et al. 2019, "CTRL"); 1 for no penalty.
        prefix: ids [B, P] that each target begins with, then padding; None for none.
    """

    def __init__(
        self,
        end,
        suppressed=(),
        min_length=0,
        no_repeat_ngram=0,
        repetition_penalty=1.0,
        prefix=None,
    ):
        self.end = end
        self.suppressed = tuple(suppressed)
        self.min_length = min_length
        self.no_repeat_ngram = no_repeat_ngram
        self.repetition_penalty = repetition_penalty
        # One more place, so that there is a last one that forces nothing.
        self.prefix = None if prefix is None else ops.pad(prefix, ((0, 0), (0, 1)))

    def best(self, logits, written, index, k):
        """The k best tokens of each row.

        Args:
            logits: [R, V] of the place `index`.
            written: ids [R, length], written before it.
            index: the place.
            k: how many; fewer where the vocabulary is smaller.

        Returns:
            Their logits [R, k], best first, FORBIDDEN where there are no more that may be written,
            and their ids [R, k].
        """
        # Ids that nobody may write are few. They are looked for among the best, which is quicker
        # than to change the logits of the whole vocabulary.
        few = len(self.suppressed) + (1 if self.min_length else 0)
        vocabulary_size = logits.shape[-1]
        changed = self._change(logits, written, index)
        changed, ids = top_k(changed, min(k + few, vocabulary_size))  # [R, k + few]
        if not few:
            return changed, ids
        changed = ops.where(self._forbids(ids, index), FORBIDDEN, changed)
        changed, order = ops.top_k(changed, min(k, vocabulary_size))
        return changed, ops.take_along_axis(ids, order, axis=-1)

    def all(self, logits, written, index):
        """The logits [R, V] with FORBIDDEN in place of those of what may not be written."""
        every = ops.arange(logits.shape[-1], dtype="int32")[None, :]
        changed = self._change(logits, written, index)
        return ops.where(self._forbids(every, index), FORBIDDEN, changed)

    def _change(self, logits, written, index):
        """What depends on the row: repetitions and the prefix."""
        changed = logits
        vocabulary_size = logits.shape[-1]
        if self.repetition_penalty != 1.0:
            earlier = masks.positions(ops.shape(written)[1]) < index
            penalty = self.repetition_penalty
            penalised = ops.where(logits > 0, logits / penalty, logits * penalty)
            repeated = _mark(written, earlier[None, :], vocabulary_size)
            changed = ops.where(repeated, penalised, changed)
        if self.no_repeat_ngram:
            completes = _completes_ngram(written, index, self.no_repeat_ngram)
            changed = ops.where(_mark(written, completes, vocabulary_size), FORBIDDEN, changed)
        if self.prefix is not None:
            forced = self._forced(ops.shape(logits)[0], index)
            others = ops.arange(vocabulary_size)[None, :] != forced
            alone = ops.where(others, FORBIDDEN, logits)
            changed = ops.where(forced != masks.PADDING, alone, changed)
        return changed

    def _forbids(self, ids, index):
        """Whether ids [R, k] are among those that nobody may write at this place."""
        forbidden = ops.zeros_like(ids, dtype="bool")
        for one in self.suppressed:
            forbidden = forbidden | (ids == one)
        if self.min_length:
            forbidden = forbidden | ((ids == self.end) & (index < self.min_length))
        if self.prefix is not None:  # which may have anything in it
            forbidden = forbidden & (self._forced(ops.shape(ids)[0], index) == masks.PADDING)
        return forbidden

    def _forced(self, num_rows, index):
        """The id that each row has to write, [R, 1]; padding where it is free."""
        places = ops.shape(self.prefix)[1]
        forced = ops.take(self.prefix, ops.minimum(index, places - 1), axis=1)  # [B]
        return ops.repeat(forced, num_rows // ops.shape(forced)[0])[:, None]


def _completes_ngram(ids, index, size):
    """Where in ids [R, length] a token stands that would repeat an n-gram at place `index`.

    It does when the n - 1 tokens before it are the n - 1 tokens before `index`.
    """
    length = ops.shape(ids)[1]
    here = masks.positions(length)
    same = ((here >= size - 1) & (here < index))[None, :]
    for back in range(1, size):
        before = ops.roll(ids, back, axis=1)  # what rolls over to the front is masked by `same`
        latest = ops.take(ids, ops.maximum(index - back, 0), axis=1)[:, None]
        same = same & (before == latest)
    return same


def _mark(ids, where, vocabulary_size):
    """Which of the vocabulary are among the ids [R, length] at the places `where`: [R, V]."""
    num_rows, length = ops.shape(ids)[0], ops.shape(ids)[1]
    ids = ops.where(where, ids, masks.PADDING)
    rows = ops.repeat(ops.arange(num_rows, dtype="int32"), length)
    counts = ops.scatter(
        ops.stack([rows, ops.reshape(ids, (-1,))], axis=1),
        ops.ones_like(rows),
        (num_rows, vocabulary_size),
    )
    return counts > 0
