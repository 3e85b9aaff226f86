"""Beam search: the N best hypotheses of each sentence, place by place."""

from keras import ops

from keras_transformer.generation.constraints import FORBIDDEN, Constraints
from keras_transformer.generation.loop import make_record, move, write


def length_penalty(length, alpha, offset=5.0):
    """((offset + |Y|) / (offset + 1))^alpha (Wu et al. 2016, equation 14, with the offset 5).

    With the offset 0 it is |Y|^alpha, as in fairseq, Marian and CTranslate2.
    """
    length = ops.maximum(ops.cast(length, "float32"), 1.0)  # of nothing, as of the end alone
    return ((offset + length) / (offset + 1.0)) ** alpha


class BeamSearch:
    """Keeps the N most probable unfinished hypotheses, and the best finished ones.

    The score of a hypothesis Y for the source X is log P(Y | X) / lp(Y) + cp(X; Y) (Wu et al. 2016,
    "Google's Neural Machine Translation System", section 7), where
    cp = beta * sum over source places of log(min(attention that the place got, 1)).

    A search ends when no unfinished hypothesis could still come among the `n_best`: log P only
    falls, lp is at best what it is at the shortest or at the longest length to come, and cp is
    never positive. Ending there never changes the result.

    Args:
        limits: int32 [B], the most tokens of each sentence, the end id among them; 0 for an empty
            sentence. A hypothesis that comes to its limit is finished as it is.
        length: at least the largest limit.
        end: the id that ends a sentence.
        beams: N.
        n_best: how many finished hypotheses to keep, at most N.
        alpha: the exponent of the length penalty; 0 for none.
        offset: of the length penalty.
        coverage: beta, the weight of the coverage penalty; 0 for none. Needs alignments.
        constraints: what may be written.
        memory_keep: bool [B, S], True where the source has a token; given, alignments are recorded.
    """

    def __init__(
        self,
        limits,
        length,
        end,
        beams,
        n_best=1,
        alpha=0.0,
        offset=5.0,
        coverage=0.0,
        constraints=None,
        memory_keep=None,
    ):
        self.limits = limits
        self.length = length
        self.end = end
        self.beams = beams
        self.n_best = n_best
        self.alpha = alpha
        self.offset = offset
        self.coverage = coverage
        self.constraints = constraints or Constraints(end)
        self.memory_keep = memory_keep
        self.batch_size = ops.shape(limits)[0]
        self.num_rows = self.batch_size * beams

    def start(self):
        """What the search has to remember, before the first place."""
        # All hypotheses of a sentence are alike at first: only one of them counts.
        empty = (self.limits <= 0)[:, None]
        first = ops.concatenate(
            [ops.zeros((1, 1)), ops.full((1, self.beams - 1), FORBIDDEN)], axis=1
        )
        return {
            "record": self._make_record(self.num_rows),
            "totals": ops.where(empty, FORBIDDEN, first),  # [B, N] log P of each
            "finished": self._make_record(self.batch_size * self.n_best),
            # An empty sentence has been translated already, by an empty one.
            "scores": ops.where(empty, first[:, : self.n_best], FORBIDDEN),  # [B, n_best]
            "done": self.limits <= 0,
        }

    def choose(self, progress, index, logits, alignment=None):
        """The ids [B N] to write at the place `index`, the rows that they continue, and what to
        remember.
        """
        candidates, totals, ids, rows = self._candidates(progress, index, logits, alignment)
        at_limit = (index + 1 >= self.limits)[:, None]  # [B, 1]
        ended = (ids == self.end) | at_limit  # [B, 2 N]

        # An end counts as any other candidate does: if it is among the N best.
        among_best = ops.arange(2 * self.beams)[None, :] < self.beams
        counts = ended & among_best & (totals > FORBIDDEN / 2) & ~progress["done"][:, None]
        scores = ops.where(counts, self._score(totals, candidates, index), FORBIDDEN)
        finished, scores = self._keep_best(progress, candidates, scores)

        totals, chosen = ops.top_k(ops.where(ended, FORBIDDEN, totals), self.beams)  # [B, N]
        order = self._stay(ops.take_along_axis(rows, chosen, axis=1))
        totals = ops.take_along_axis(totals, order, axis=1)
        chosen = self._flat(ops.take_along_axis(chosen, order, axis=1), 2 * self.beams)
        progress = {
            "record": move(candidates, chosen),
            "totals": totals,
            "finished": finished,
            "scores": scores,
            "done": progress["done"] | at_limit[:, 0] | self._is_settled(scores, totals, index),
        }
        rows, ids = ops.reshape(rows, (-1,)), ops.reshape(ids, (-1,))
        return ops.take(ids, chosen), ops.take(rows, chosen), progress

    def is_done(self, progress):
        return ops.all(progress["done"])

    def results(self, progress):
        """A dict of `ids` [B, n_best, length], best first, each up to its end id, then padding;
        their `scores` [B, n_best], minus infinity where there are no more hypotheses;
        `token_scores` [B, n_best, length]; and `alignment` [B, n_best, length, S] where recorded.
        """
        results = {
            name: ops.reshape(written, (self.batch_size, self.n_best, *ops.shape(written)[1:]))
            for name, written in progress["finished"].items()
        }
        scores = progress["scores"]
        results["scores"] = ops.where(scores > FORBIDDEN / 2, scores, -float("inf"))
        return results

    def _candidates(self, progress, index, logits, alignment):
        """The 2 N best continuations of each sentence: at most N of them end, so N go on.

        Returns:
            Their record [B 2 N, ...], and log P, ids and the rows that they continue, [B, 2 N]
            each, best first.
        """
        logits = ops.cast(logits, "float32")  # [B N, V]
        normaliser = ops.logsumexp(logits, axis=-1)  # [B N]
        # No more than 2 N of those can be continuations of one hypothesis.
        changed, ids = self.constraints.best(
            logits, progress["record"]["ids"], index, 2 * self.beams
        )
        width = ids.shape[-1]
        before = ops.reshape(progress["totals"], (-1,)) - normaliser
        totals = ops.reshape(changed + before[:, None], (self.batch_size, self.beams * width))
        totals, places = ops.top_k(totals, 2 * self.beams)  # [B, 2 N]
        rows = self._flat(places // width, self.beams)  # [B 2 N]
        ids = ops.take(ops.reshape(ids, (-1,)), rows * width + ops.reshape(places % width, (-1,)))
        logit = ops.take(ops.reshape(logits, (-1,)), rows * logits.shape[-1] + ids)
        values = {"ids": ids, "token_scores": logit - ops.take(normaliser, rows)}
        if self.memory_keep is not None:
            alignment = ops.reshape(alignment, (self.num_rows, -1))  # [B N, S]
            values["alignment"] = ops.take(ops.cast(alignment, "float32"), rows, axis=0)
        record = write(move(progress["record"], rows), index, values)
        shape = (self.batch_size, 2 * self.beams)
        return record, totals, ops.reshape(ids, shape), ops.reshape(rows, shape)

    def _stay(self, rows):
        """An order in which hypotheses keep their rows: the first that continues a row gets that
        row, and the others get the rows that nobody continues. Fewer states have to move.

        Args:
            rows: [B, N], the rows that the hypotheses continue.

        Returns:
            [B, N], which hypothesis comes in which place.
        """
        place = ops.arange(self.beams, dtype="int32")
        before = place[:, None] > place[None, :]
        same = rows[:, :, None] == rows[:, None, :]  # [B, N, N]
        stays = ~ops.any(same & before[None], axis=2)  # [B, N] hypotheses
        goes_to = stays[:, None, :] & (rows[:, None, :] % self.beams == place[None, :, None])
        free = ~ops.any(goes_to, axis=2)  # [B, N] places
        # The first of those that move gets the first free place, the second the second.
        turn = ops.cumsum(ops.cast(~stays, "int32"), axis=1)
        room = ops.cumsum(ops.cast(free, "int32"), axis=1)
        moves = (free[:, :, None] & ~stays[:, None, :]) & (room[:, :, None] == turn[:, None, :])
        return ops.sum(ops.where(goes_to | moves, place, 0), axis=2)

    def _score(self, totals, candidates, index):
        scores = totals / length_penalty(index + 1, self.alpha, self.offset)
        if not self.coverage:
            return scores
        attended = ops.sum(candidates["alignment"], axis=1)  # [B 2 N, S]
        attended = ops.reshape(attended, (self.batch_size, 2 * self.beams, -1))
        missed = ops.log(ops.clip(attended, 1e-6, 1.0))  # a place that got nothing: not -infinity
        missed = ops.where(self.memory_keep[:, None, :], missed, 0.0)
        return scores + self.coverage * ops.sum(missed, axis=-1)

    def _keep_best(self, progress, candidates, scores):
        """The `n_best` of the finished hypotheses, old and new."""
        scores = ops.concatenate([progress["scores"], scores], axis=1)

        def join(old, new):
            old = ops.reshape(old, (self.batch_size, self.n_best, *ops.shape(old)[1:]))
            new = ops.reshape(new, (self.batch_size, 2 * self.beams, *ops.shape(new)[1:]))
            both = ops.concatenate([old, new], axis=1)
            return ops.reshape(both, (-1, *ops.shape(both)[2:]))

        scores, chosen = ops.top_k(scores, self.n_best)
        joined = {name: join(old, candidates[name]) for name, old in progress["finished"].items()}
        return move(joined, self._flat(chosen, self.n_best + 2 * self.beams)), scores

    def _is_settled(self, scores, totals, index):
        """Whether no unfinished hypothesis can come among the best any more, bool [B]."""
        most_probable = ops.max(totals, axis=1)
        shortest = length_penalty(index + 2, self.alpha, self.offset)
        longest = length_penalty(self.limits, self.alpha, self.offset)
        reachable = ops.maximum(most_probable / shortest, most_probable / longest)
        worst = scores[:, -1]
        return (worst > FORBIDDEN / 2) & (worst >= reachable)

    def _make_record(self, num_rows):
        memory_length = None if self.memory_keep is None else ops.shape(self.memory_keep)[1]
        return make_record(num_rows, self.length, scores=True, memory_length=memory_length)

    def _flat(self, places, width):
        """Places [B, C] within each sentence's `width` rows, as row numbers [B C]."""
        sentences = ops.arange(self.batch_size, dtype="int32")[:, None]
        return ops.reshape(ops.cast(places, "int32") + sentences * width, (-1,))
