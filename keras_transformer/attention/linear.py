"""Linear attention: phi(Q) (phi(K)'V), multiplied in the order that never makes a T x S matrix."""

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention import blocks
from keras_transformer.attention.features import (
    EluFeatures,
    PositiveFeatures,
    TrigonometricFeatures,
)
from keras_transformer.attention.mechanism import Mechanism
from keras_transformer.attention.options import check_count, check_positive

CHUNK = 64  # places whose weights are computed at once by causal attention


def sums_so_far(query, key, value):
    """sum_{s <= t} (query_t'key_s) value_s, for queries and keys [B, H, N, F].

    In chunks: what came before a chunk is in a sum of key' value, one for each chunk instead of one
    for each place, and within a chunk the weights are a small triangular matrix.
    """
    length = ops.shape(query)[2]
    query, key, value = (blocks.cut(x, CHUNK) for x in (query, key, value))
    of_chunks = ops.einsum("bhnsf,bhnsk->bhnfk", key, value)  # [B, H, chunks, F, K]
    # Shifted, for a sum minus its last term would have lost the digits of small ones.
    before = ops.pad(of_chunks, [[0, 0], [0, 0], [1, 0], [0, 0], [0, 0]])
    before = ops.cumsum(blocks.take(before, 0, ops.shape(of_chunks)[2]), axis=2)
    earlier = masks.visible(CHUNK, CHUNK, causal=True)[None]  # [1, 1, 1, CHUNK, CHUNK]
    weights = ops.where(earlier, ops.einsum("bhntf,bhnsf->bhnts", query, key), 0.0)
    return blocks.join(ops.matmul(query, before) + ops.matmul(weights, value), length)


class LinearAttention(Mechanism):
    """What linear attention shares: sum_s phi(q)'phi(k_s) v_s / sum_s phi(q)'phi(k_s).

    The sums over s do not depend on the query and are computed once: O(N F K) in time, and while
    decoding a state of F x K numbers, however long the text. (Across, the features of the keys are
    kept as well, for whoever asks what was looked at.) All in float32.

    Args:
        num_heads, head_dim, causal: as of every mechanism.
        dropout: not used: there are no weights that could be dropped.
        features: a `FeatureMap`.
    """

    def __init__(self, num_heads, head_dim, causal, dropout, features, **kwargs):
        super().__init__(num_heads, head_dim, causal, dropout, **kwargs)
        self.feature_map = features

    def build(self, query_shape, key_shape, value_shape):
        self.feature_map.build(None)

    def adapt(self, query, key, keep):
        self.feature_map.redraw()

    def attend(self, query, key, value, keep):
        if not self.causal:
            sums = self.remember(key, value, keep)["sums"]
            return self._divide(ops.matmul(self._features(query), sums), value.dtype)
        features, key = self._features(query), self._key_features(key, keep)
        return self._divide(sums_so_far(features, key, _with_one(value)), value.dtype)

    def remember(self, key, value, keep=None):
        key = self._key_features(key, keep)
        return {"sums": ops.einsum("bhsf,bhsk->bhfk", key, _with_one(value)), "key": key}

    def recall(self, query, memory, state):
        features = self._features(query)
        output = self._divide(ops.matmul(features, memory["sums"]), query.dtype)
        weights = ops.einsum("bhtf,bhsf->bhts", features, memory["key"])
        total = self._away_from_zero(ops.matmul(features, memory["sums"][..., -1:]))
        return output, ops.cast(divide(weights, total), query.dtype), state

    def start(self, batch_size, length):
        shape = (batch_size, self.num_heads, self.feature_map.num_features, self.head_dim + 1)
        return {"sums": ops.zeros(shape, "float32")}

    def step(self, query, key, value, state, index):
        key = self._key_features(key, None)
        sums = state["sums"] + ops.einsum("bhsf,bhsk->bhfk", key, _with_one(value))
        output = self._divide(ops.matmul(self._features(query), sums), value.dtype)
        return output, {"sums": sums}

    def _features(self, query):
        return self.feature_map.of_query(query)

    def _key_features(self, key, keep):
        key = self.feature_map.of_key(key, keep, self.causal)
        return key if keep is None else ops.where(keep[:, None, :, None], key, 0.0)

    def _divide(self, sums, dtype):
        """Sums of values, over the sum of ones that is their last component."""
        size = sums.shape[-1] - 1
        total = self._away_from_zero(blocks.take(sums, size, 1, axis=-1))
        return ops.cast(divide(blocks.take(sums, 0, size, axis=-1), total), dtype)

    def _away_from_zero(self, total):
        smallest = self.feature_map.smallest
        return ops.where(total < 0, ops.minimum(total, -smallest), ops.maximum(total, smallest))


@keras.saving.register_keras_serializable("keras_transformer")
class EluAttention(LinearAttention):
    """Linear attention with phi(x) = elu(x) + 1 (Katharopoulos et al. 2020).

    sum_s phi(q)'phi(k_s) v_s / sum_s phi(q)'phi(k_s), over all s or, if causal, those so far.

    Cost: O(N K^2); decoding keeps K^2 numbers within a sequence. Choose it for long sequences and
    fast decoding where sharp weights are not needed; it does not approximate the softmax.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism; nothing is dropped.
    """

    compares_by_dot_product = False  # the elu of what is rotated knows no distance

    def __init__(self, num_heads, head_dim, causal=False, dropout=0.0, **kwargs):
        features = EluFeatures(num_heads, head_dim)
        super().__init__(num_heads, head_dim, causal, dropout, features, **kwargs)


@keras.saving.register_keras_serializable("keras_transformer")
class RandomFeatureAttention(LinearAttention):
    """Linear attention with random Fourier features of unit vectors (Peng et al. 2021, "RFA").

    sum_s phi(q)'phi(k_s) v_s / sum_s phi(q)'phi(k_s), with
    phi(x) = [sin w'(sigma * x), cos w'(sigma * x)] / sqrt(features), with random w, and a sigma for
    each component of a head that is learned and begins at 1.

    phi(q)'phi(k) approximates exp(-|sigma * (q - k)|^2 / 2) of queries and keys at unit length,
    which for equal components of sigma is exp((sigma q)'(sigma k)) up to a constant factor, with an
    error that falls with 1 / sqrt(features). The paper's gates are left out.

    Cost: O(N features K). Choose it like `performer`; until a larger sigma is learned, a key has at
    most e^2 = 7.4 times the weight of another, so that none is sharp. Weights may be negative.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism; nothing is dropped.
        features: how many random projections.
        redraw: they are drawn anew after so many passes of training; 0 for never.
    """

    weights_are_probabilities = False
    compares_by_dot_product = False  # sigma and the random features stand between the two

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        features=64,
        redraw=0,
        **kwargs,
    ):
        check_positive("features", features)
        features = TrigonometricFeatures(
            num_heads, head_dim, features, check_count("redraw", redraw)
        )
        super().__init__(num_heads, head_dim, causal, dropout, features, **kwargs)


@keras.saving.register_keras_serializable("keras_transformer")
class PerformerAttention(LinearAttention):
    """Linear attention with positive orthogonal random features (Choromanski et al. 2021, FAVOR+).

    sum_s phi(q)'phi(k_s) v_s / sum_s phi(q)'phi(k_s), with
    phi(x) = exp(w'y - |y|^2 / 2) / sqrt(features) of y = x / K^(1/4), with random w, of which so
    many as a head has components are orthogonal.

    phi(q)'phi(k) is an unbiased estimate of exp(q'k / sqrt(K)), with an error that falls with
    1 / sqrt(features): softmax attention in linear time.

    Cost: O(N features K). Choose it where softmax attention is wanted and N^2 is too much; the
    sharper its weights, the more features it takes.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism; nothing is dropped.
        features: how many random projections.
        redraw: they are drawn anew after so many passes of training; 0 for never.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        features=64,
        redraw=1000,
        **kwargs,
    ):
        check_positive("features", features)
        features = PositiveFeatures(num_heads, head_dim, features, check_count("redraw", redraw))
        super().__init__(num_heads, head_dim, causal, dropout, features, **kwargs)


@keras.saving.register_keras_serializable("keras_transformer")
class EfficientAttention(Mechanism):
    """softmax_K(Q) (softmax_N(K)'V) (Shen et al. 2021, "Efficient Attention").

    The softmax of a query goes over its components, that of the keys over the places, component by
    component: each component of a key is a global map of where to look. If causal, over the places
    so far.

    Cost: O(N K^2); decoding keeps K^2 numbers within a sequence. Choose it like `linear`; its
    weights sum to 1.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism; nothing is dropped.
    """

    compares_by_dot_product = False

    def attend(self, query, key, value, keep):
        if not self.causal:
            sums = self.remember(key, value, keep)["sums"]
            return ops.cast(ops.matmul(self._features(query), sums), value.dtype)
        key = exponential(key, keep)
        query = divide(self._features(query), ops.maximum(ops.cumsum(key, axis=2), 1e-30))
        return ops.cast(sums_so_far(query, key, ops.cast(value, "float32")), value.dtype)

    def remember(self, key, value, keep=None):
        key = exponential(key, keep)
        key = divide(key, ops.maximum(ops.sum(key, axis=2, keepdims=True), 1e-30))
        sums = ops.einsum("bhsf,bhsk->bhfk", key, ops.cast(value, "float32"))
        return {"sums": sums, "key": key}

    def recall(self, query, memory, state):
        features = self._features(query)
        output = ops.cast(ops.matmul(features, memory["sums"]), query.dtype)
        weights = ops.einsum("bhtf,bhsf->bhts", features, memory["key"])
        return output, ops.cast(weights, query.dtype), state

    def start(self, batch_size, length):
        shape = (batch_size, self.num_heads, self.head_dim, self.head_dim + 1)
        return {"sums": ops.zeros(shape, "float32")}

    def step(self, query, key, value, state, index):
        key = ops.transpose(exponential(key, None), (0, 1, 3, 2))  # [B, H, K, 1]
        sums = state["sums"] + key * _with_one(value)
        output = ops.matmul(self._features(query), sums[..., :-1] / sums[..., -1:])
        return ops.cast(output, value.dtype), {"sums": sums}

    def _features(self, query):
        return ops.softmax(ops.cast(query, "float32"), axis=-1)


def exponential(key, keep):
    """exp of keys [B, H, S, K] in float32, 0 for padding.

    What is subtracted from a softmax's scores to keep the exponential in range would have to be
    known before the last key is: instead, keys are kept within +-30, far beyond what occurs.
    """
    key = ops.exp(ops.clip(ops.cast(key, "float32"), -30.0, 30.0))
    return key if keep is None else ops.where(keep[:, None, :, None], key, 0.0)


def divide(x, total):
    """x / total, where a total may be as small as 1e-30.

    The square of such a total, which is in the gradient, is 0 in float32: both are scaled first.
    """
    scale = ops.stop_gradient(1.0 / total)
    return x * scale / (total * scale)


def _with_one(value):
    """Values with one more component, 1, whose sum is that of the weights; in float32."""
    value = ops.cast(value, "float32")
    return ops.concatenate([value, ops.ones_like(value[..., :1])], axis=-1)
