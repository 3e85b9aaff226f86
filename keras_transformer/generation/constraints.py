"""What may not be written next."""

from keras import ops

from keras_transformer import masks

# In place of the logit of what may not be written: below any real one, yet finite, so that sums of
# it are no NaN.
FORBIDDEN = -1e9


class Constraints:
    """Changes the logits from which the next token is chosen.

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

    def __call__(self, logits, ids, index):
        """The logits [R, V] of the place `index`, after the ids [R, length] written before it."""
        constrained = logits
        vocabulary_size = logits.shape[-1]
        if self.repetition_penalty != 1.0:
            earlier = masks.positions(ops.shape(ids)[1]) < index
            penalty = self.repetition_penalty
            penalised = ops.where(logits > 0, logits / penalty, logits * penalty)
            repeated = _mark(ids, earlier[None, :], vocabulary_size)
            constrained = ops.where(repeated, penalised, constrained)
        forbidden = self._forbidden(vocabulary_size, index)
        if forbidden is not None:
            constrained = constrained + FORBIDDEN * forbidden
        if self.no_repeat_ngram:
            completes = _completes_ngram(ids, index, self.no_repeat_ngram)
            constrained = ops.where(_mark(ids, completes, vocabulary_size), FORBIDDEN, constrained)
        if self.prefix is not None:
            constrained = self._force(constrained, logits, index)
        return constrained

    def _forbidden(self, vocabulary_size, index):
        """1 for each id that no hypothesis may write at this place, float32 [V]."""
        forbidden = None
        if self.suppressed:
            ids = ops.array(self.suppressed, "int32")
            forbidden = ops.max(ops.one_hot(ids, vocabulary_size), axis=0)
        if self.min_length:
            too_early = ops.cast(index < self.min_length, "float32")
            too_early = too_early * ops.one_hot(self.end, vocabulary_size)
            forbidden = too_early if forbidden is None else ops.maximum(forbidden, too_early)
        return forbidden

    def _force(self, constrained, logits, index):
        places = ops.shape(self.prefix)[1]
        forced = ops.take(self.prefix, ops.minimum(index, places - 1), axis=1)  # [B]
        hypotheses = ops.shape(logits)[0] // ops.shape(forced)[0]
        forced = ops.repeat(forced, hypotheses)[:, None]  # [R, 1]
        alone = ops.where(ops.arange(logits.shape[-1])[None, :] == forced, logits, FORBIDDEN)
        return ops.where(forced != masks.PADDING, alone, constrained)


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
