"""Cross-attention that runs along its memory: each place begins where the last one was."""

import keras
from keras import ops

from keras_transformer.attention.mechanism import Mechanism
from keras_transformer.attention.options import check_positive, check_share, choose
from keras_transformer.attention.scores import SCORES, AdditiveScore, per_head
from keras_transformer.attention.softmax import softmax

MAX_LENGTH = 16_384  # of a memory whose length is not known when a graph is made


class RunningAttention(Mechanism):
    """Attention whose weights depend on those of the place before.

    The weights of a place are the state of the next: in training, too, the places are gone through
    one after the other. At first the weight is on the first place of the memory. XLA cannot compile
    such a training on TensorFlow: Keras then leaves it alone.

    Cost: O(T S K), in T steps.
    """

    can_encode = False
    can_be_causal = False

    def __init__(self, num_heads, head_dim, causal=False, dropout=0.0, **kwargs):
        super().__init__(num_heads, head_dim, causal, dropout, **kwargs)
        self.supports_jit = keras.backend.backend() != "tensorflow"

    def scores(self, query, memory):
        """What can be computed of all queries [B, H, N, K] at once; N is its third axis."""
        raise NotImplementedError

    def align(self, scores, last, memory):
        """The weights, float32 [B, H, N, S], after the last ones."""
        raise NotImplementedError

    def prepare(self, key):
        """What of the keys the scores are made of."""
        raise NotImplementedError

    def call(self, query, key, value, keep=None, return_attention_scores=False):
        memory = self.remember(key, value, keep)
        by_place = ops.moveaxis(self.scores(query, memory), 2, 0)  # [T, B, H, ...]

        def go_on(last, scores):
            weights = self.align(ops.expand_dims(scores, 2), last, memory)
            return weights, weights

        first = self._first(ops.shape(query)[0], memory)[:, :, None]
        _, weights = ops.scan(go_on, first, by_place)  # [T, B, H, 1, S]
        weights = ops.cast(ops.moveaxis(weights[:, :, :, 0], 0, 2), value.dtype)  # [B, H, T, S]
        output = ops.matmul(weights, value)
        return (output, weights) if return_attention_scores else output

    def remember(self, key, value, keep=None):
        return super().remember(self.prepare(key), value, keep)

    def start_recall(self, rows, memory):
        return {"alignment": self._first(rows, memory)}

    def recall(self, query, memory, state):
        batch_size, _, count, _ = ops.shape(query)
        last = state["alignment"]  # [B N, H, S]
        shape = (batch_size, count, self.num_heads, ops.shape(last)[-1])
        last = ops.transpose(ops.reshape(last, shape), (0, 2, 1, 3))
        weights = self.align(self.scores(query, memory), last, memory)
        state = ops.reshape(ops.transpose(weights, (0, 2, 1, 3)), ops.shape(state["alignment"]))
        weights = ops.cast(weights, query.dtype)
        return ops.matmul(weights, memory["value"]), weights, {"alignment": state}

    def _first(self, rows, memory):
        """All weight on the first place, float32 [rows, H, S]."""
        length = ops.shape(memory["value"])[2]
        first = ops.one_hot(0, length, dtype="float32")
        return ops.broadcast_to(first, (rows, self.num_heads, length))


@keras.saving.register_keras_serializable("keras_transformer")
class MonotonicAttention(RunningAttention):
    """Attention that only moves forward (Raffel et al. 2017, "Monotonic Attention").

    From where the last place looked, the memory is gone along, and each key is stopped at with the
    probability p = sigmoid(score + r). The weights are the probabilities of having stopped,
    a_j = p_j (a'_j + (1 - p_{j-1}) a_{j-1} / p_{j-1}) with a' those of the place before; what went
    past the end is lost. While training, noise on the scores makes the model sure of where to stop.
    (The paper decodes by hard decisions, and normalises the vector of its additive score. Here
    decoding has the same weights as training.)

    Cost: O(T S (K + log S)) in time and O(T S K) in memory, in T steps: the additive score makes
    [B, H, T, S, K] at once; with "dot", "general" or "cosine" it is O(T S log S) in memory. For
    cross-attention where the target follows the source: speech, transliteration. Choose it where
    long inputs make `dot` skip or repeat.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism; nothing is dropped.
        score: "dot", "general", "cosine", "additive" or "mlp".
        noise: standard deviation of the noise, from 0 to 1.
    """

    longest = MAX_LENGTH

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        score="additive",
        noise=1.0,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, causal, dropout, **kwargs)
        self.score = choose(SCORES, "score", score)(num_heads, head_dim, dtype=self.dtype_policy)
        self.noise = keras.layers.GaussianNoise(check_share("noise", noise), dtype="float32")

    def build(self, query_shape, key_shape, value_shape):
        self.score.build(None)
        # At first, stop seldom: an attention that stops at once never sees what is farther on.
        self.offset = self.add_weight(
            shape=(self.num_heads, 1, 1),
            initializer=keras.initializers.Constant(-1.0),
            name="offset",
        )

    def prepare(self, key):
        return self.score.of_key(key)

    def scores(self, query, memory):
        scores = self.score.pair(self.score.of_query(query), memory["key"])
        return self.noise(ops.cast(scores, "float32") + ops.cast(self.offset, "float32"))

    def align(self, scores, last, memory):
        stop = ops.sigmoid(scores)
        if "keep" in memory:
            stop = ops.where(memory["keep"][:, None, None, :], stop, 0.0)
        # Who arrives at j was there at last, or arrived at j - 1 and went on.
        going_on = ops.pad(1 - stop, [[0, 0], [0, 0], [0, 0], [1, 0]])[..., :-1]
        return stop * accumulate(going_on, last)


@keras.saving.register_keras_serializable("keras_transformer")
class LocationAttention(RunningAttention):
    """Softmax of v'tanh(W q + U k_s + F f_s), where f is a convolution of the last weights.

    Location-aware attention (Chorowski et al. 2015, without its bias b): the model knows where it
    has just looked and can go on from there.

    Cost: O(T S K), in T steps. For cross-attention where the target follows the source and `dot`
    confuses places that are alike: speech, text to speech.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism; nothing is dropped.
        filters: how many convolutions.
        width: how many weights each of them reads, an odd number.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        filters=8,
        width=15,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, causal, dropout, **kwargs)
        if check_positive("width", width) % 2 == 0:
            raise ValueError(f"width={width!r} has to be a positive odd number.")
        self.filters = check_positive("filters", filters)
        self.width = width
        self.score = AdditiveScore(num_heads, head_dim, dtype=self.dtype_policy)

    def build(self, query_shape, key_shape, value_shape):
        self.score.build(None)
        self.convolution = self.add_weight(
            shape=(self.width, 1, self.filters), initializer="glorot_uniform", name="convolution"
        )
        self.matrix = self.add_weight(
            shape=(self.num_heads, self.filters, self.head_dim),
            initializer="glorot_uniform",
            name="matrix",
        )

    def prepare(self, key):
        return self.score.of_key(key)

    def scores(self, query, memory):
        return self.score.of_query(query)  # [B, H, N, K]

    def align(self, scores, last, memory):
        shape = ops.shape(last)  # [B, H, N, S]
        rows = ops.reshape(last, (-1, shape[-1], 1))
        kernel = ops.cast(self.convolution, "float32")
        found = ops.reshape(ops.conv(rows, kernel, padding="same"), (*shape, self.filters))
        found = ops.einsum("bhnsf,hfk->bhnsk", found, ops.cast(self.matrix, "float32"))
        key = memory["key"][:, :, None]  # [B, H, 1, S, K]
        hidden = ops.tanh(scores[..., None, :] + key + ops.cast(found, key.dtype))
        scores = ops.cast(per_head(hidden, self.score.vector)[..., 0], "float32")
        keep = memory.get("keep")
        return softmax(scores, None if keep is None else keep[:, None, None, :])


def accumulate(factor, x):
    """y_j = factor_j y_{j-1} + x_j along the last axis of [B, H, N, S], by doubling.

    y_j = x_j + factor_j (x_{j-1} + factor_{j-1} (...)): from sums over 1, 2, 4, ... terms, in
    log S passes and without a division that would have to be kept from zero.
    """
    length, shift = ops.shape(x)[-1], 1
    longest = length if isinstance(length, int) else MAX_LENGTH
    while shift < longest:

        def before(y, shift=shift):
            return ops.concatenate([ops.zeros_like(y[..., :shift]), y], axis=-1)[..., :length]

        x = x + factor * before(x)
        factor = factor * before(factor)
        shift *= 2
    return x
