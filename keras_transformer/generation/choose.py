"""One hypothesis a sentence: the most probable token, or one that is drawn."""

from keras import ops

from keras_transformer import masks
from keras_transformer.generation.constraints import FORBIDDEN, Constraints
from keras_transformer.generation.loop import make_record, write


class Greedy:
    """Takes the most probable token at every place.

    Args:
        limits: int32 [B], the most tokens of each row, the end id among them; 0 for an empty row.
        length: at least the largest limit.
        end: the id that ends a sentence.
        constraints: what may be written; by default anything.
        scores: whether to record the log-probabilities, which costs a softmax.
        memory_length: S, to record alignments.
    """

    def __init__(self, limits, length, end, constraints=None, scores=False, memory_length=None):
        self.limits = limits
        self.length = length
        self.end = end
        self.constraints = constraints or Constraints(end)
        self.scores = scores
        self.memory_length = memory_length
        self.num_rows = ops.shape(limits)[0]

    def start(self):
        """What the search has to remember, before the first place."""
        record = make_record(self.num_rows, self.length, self.scores, self.memory_length)
        return {"record": record, "finished": self.limits <= 0}

    def choose(self, progress, index, logits, alignment=None):
        """The ids [R] to write at the place `index`, and what to remember."""
        finished = progress["finished"]
        ids = self.pick(logits, progress["record"]["ids"], index)
        ids = ops.where(finished, masks.PADDING, ids)
        values = {"ids": ids}
        if self.scores:
            values["token_scores"] = ops.where(finished, 0.0, log_probability(logits, ids))
        if self.memory_length is not None:
            values["alignment"] = ops.where(finished[:, None], 0.0, alignment[:, 0])
        progress = {
            "record": write(progress["record"], index, values),
            "finished": finished | (ids == self.end) | (index + 1 >= self.limits),
        }
        return ids, None, progress

    def pick(self, logits, written, index):
        """The next ids [R], after those written [R, length]."""
        _, ids = self.constraints.best(logits, written, index, 1)
        return ops.cast(ids[:, 0], "int32")

    def is_done(self, progress):
        return ops.all(progress["finished"])

    def results(self, progress):
        """A dict of `ids` [B, 1, length], each up to and including its end id, then padding; as
        asked for, `token_scores` [B, 1, length] and `alignment` [B, 1, length, S].
        """
        return {name: written[:, None] for name, written in progress["record"].items()}


class Sampling(Greedy):
    """Draws every token from the model's distribution, or from the likely part of it.

    A row's tokens depend on its own seed alone, not on the rows beside it.

    Args:
        temperature: float [B]; logits are divided by it. 0 is greedy.
        top_k: int [B]; draw from this many most probable tokens (Fan et al. 2018), 0 for all.
        top_p: float [B]; draw from the fewest most probable tokens that have this probability
            together (Holtzman et al. 2020), 1 for all. Applied to what top_k has left.
        seed: int [B].
        limits, length, end, constraints, scores, memory_length: as of `Greedy`.
    """

    def __init__(self, *args, temperature, top_k, top_p, seed, **kwargs):
        super().__init__(*args, **kwargs)
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self.seed = seed

    def pick(self, logits, written, index):
        logits = self.constraints.all(logits, written, index)
        vocabulary_size = logits.shape[-1]
        warm = self.temperature > 0
        scaled = ops.cast(logits, "float32") / ops.where(warm, self.temperature, 1.0)[:, None]
        scaled = ops.where(logits > FORBIDDEN / 2, scaled, FORBIDDEN)  # however warm
        scaled, order = ops.top_k(scaled, vocabulary_size)  # most probable first
        most = ops.where(self.top_k > 0, self.top_k, vocabulary_size)
        most = ops.where(warm, most, 1)
        rank = ops.arange(vocabulary_size, dtype="int32")[None, :]
        probabilities = ops.softmax(masks.hide(scaled, rank < most[:, None]), axis=-1)
        # The nucleus: a token is in it if those before it do not fill it. The first always is.
        before = ops.cumsum(probabilities, axis=-1) - probabilities
        nucleus = (before < self.top_p[:, None]) | (rank == 0)
        cumulative = ops.cumsum(ops.where(nucleus, probabilities, 0.0), axis=-1)  # [R, V]
        drawn = uniform(self.seed, index)[:, None] * cumulative[:, -1:]
        chosen = ops.sum(ops.cast(cumulative <= drawn, "int32"), axis=-1)  # [R]
        chosen = ops.minimum(chosen, ops.sum(ops.cast(nucleus, "int32"), axis=-1) - 1)
        return ops.cast(_at(order, chosen), "int32")


def log_probability(logits, ids):
    """The log-probability [R] of one id a row, from logits [R, V]; in float32."""
    logits = ops.cast(logits, "float32")
    return _at(logits, ids) - ops.logsumexp(logits, axis=-1)


def uniform(seed, index):
    """Numbers [R] in [0, 1), each a function of its seed [R] and the index.

    Keras's random numbers belong to a whole tensor, and a row's would depend on where in its batch
    it stands. This is the 32-bit finaliser of MurmurHash3 (Appleby, public domain), twice.
    """
    bits = _mix(_mix(ops.cast(seed, "uint32")) + ops.cast(index, "uint32"))
    return ops.cast(ops.right_shift(bits, 8), "float32") * 2.0**-24  # as many bits as float32 has


def _mix(bits):
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = ops.bitwise_xor(bits, ops.right_shift(bits, shift))
        bits = bits * ops.convert_to_tensor(factor, "uint32")
    return ops.bitwise_xor(bits, ops.right_shift(bits, 16))


def _at(table, columns):
    """The element of each row of [R, C] that stands in its column [R]."""
    return ops.take_along_axis(table, columns[:, None], axis=-1)[:, 0]
