"""How well a query and a key fit: the scores of softmax attention, before the softmax.

A score is made of what each side becomes on its own, computed once a place, and of a function of
both. Heads are on axis 1; what stands between them and the places, such as blocks, is free.
"""

import keras
from keras import ops


class Score(keras.layers.Layer):
    """A score function of H heads of the size K.

    Args:
        num_heads: H.
        head_dim: K.
        scale: what the score is multiplied with; by default 1 / sqrt(K).
    """

    is_dot_product = True  # of a query and a key as they are, up to their lengths

    def __init__(self, num_heads, head_dim, scale=None, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.scale = head_dim**-0.5 if scale is None else scale

    @property
    def key_dim(self):
        """The size of what `of_key` returns."""
        return self.head_dim

    def of_query(self, query):
        """Of a query [B, H, T, K] alone."""
        # Scaling the queries is the cheaper side: T x K numbers instead of T x S.
        return query * self.scale

    def of_key(self, key):
        """Of a key [B, H, S, K] alone."""
        return key

    def pair(self, query, key):
        """The scores [B, H, ..., T, S] of what became of queries and keys."""
        return ops.einsum("...tk,...sk->...ts", query, key)

    def _weight(self, name, *shape, initializer="glorot_uniform"):
        """A weight [H, ...] with the same initial distribution for each head."""
        initializer = keras.initializers.get(initializer)

        def of_heads(shape, dtype=None):
            # An initializer draws the same numbers every time; a clone of it others.
            return ops.stack([initializer.clone()(shape[1:], dtype) for _ in range(shape[0])])

        return self.add_weight(shape=(self.num_heads, *shape), initializer=of_heads, name=name)

    def _spread(self, weight, x):
        """A weight [H, K] of the last axis, to be added to x [B, H, ..., K]."""
        between = [1] * (len(x.shape) - 3)
        return ops.cast(ops.reshape(weight, (self.num_heads, *between, -1)), x.dtype)


def per_head(x, weight):
    """x [B, H, ..., K] times a matrix [H, K, J] of each head -> [B, H, ..., J].

    Not by a `matmul` or an `einsum` that has to broadcast the matrices: with oneDNN, TensorFlow
    2.21 then returns wrong numbers, and writes beyond its memory, for [B, 1, T, K] by [1, K, J].
    """
    shape = ops.shape(x)
    rows = ops.reshape(x, (*shape[:2], -1, weight.shape[1]))
    rows = ops.einsum("bhtk,hkj->bhtj", rows, ops.cast(weight, x.dtype))
    return ops.reshape(rows, (*shape[:-1], -1))


@keras.saving.register_keras_serializable("keras_transformer")
class DotScore(Score):
    """q'k / sqrt(K) (Vaswani et al. 2017, equation 1); with scale=1.0 q'k (Luong et al. 2015)."""


@keras.saving.register_keras_serializable("keras_transformer")
class GeneralScore(Score):
    """q'W k (Luong et al. 2015), here over sqrt(K) as well, with a matrix for each head."""

    is_dot_product = False  # what is rotated goes through a matrix between the two

    def build(self, input_shape=None):
        self.matrix = self._weight("matrix", self.head_dim, self.head_dim)

    def of_query(self, query):
        return super().of_query(per_head(query, self.matrix))


@keras.saving.register_keras_serializable("keras_transformer")
class CosineScore(Score):
    """b cos(q, k), with a learned strength b for each head (Graves et al. 2014).

    It begins at sqrt(K): what the scaled dot product is for vectors whose components have unit
    variance, and so the length sqrt(K).
    """

    def build(self, input_shape=None):
        begin = keras.initializers.Constant(self.head_dim * self.scale)
        self.strength = self._weight("strength", initializer=begin)

    def of_query(self, query):
        strength = ops.cast(ops.reshape(self.strength, (self.num_heads, 1, 1)), "float32")
        return ops.cast(strength * to_unit_length(query), query.dtype)

    def of_key(self, key):
        return ops.cast(to_unit_length(key), key.dtype)


@keras.saving.register_keras_serializable("keras_transformer")
class AdditiveScore(Score):
    """v'tanh(W q + U k) (Bahdanau et al. 2015); as many hidden units as a head has components."""

    is_dot_product = False

    def build(self, input_shape=None):
        size = self.head_dim
        self.query_matrix = self._weight("query_matrix", size, size)
        self.key_matrix = self._weight("key_matrix", size, size)
        self.vector = self._weight("vector", size, 1)

    def of_query(self, query):
        return per_head(query, self.query_matrix)

    def of_key(self, key):
        return per_head(key, self.key_matrix)

    def hidden(self, query, key):
        """[B, H, ..., T, S, K], by far the largest tensor of this score."""
        return ops.tanh(ops.expand_dims(query, -2) + ops.expand_dims(key, -3))

    def pair(self, query, key):
        hidden = self.hidden(query, key)
        return per_head(hidden, self.vector)[..., 0]


@keras.saving.register_keras_serializable("keras_transformer")
class MLPScore(AdditiveScore):
    """v'tanh(M tanh(W q + U k + a) + b): a perceptron of [q; k] with two hidden layers."""

    def build(self, input_shape=None):
        super().build()
        self.first_bias = self._weight("first_bias", self.head_dim, initializer="zeros")
        self.matrix = self._weight("matrix", self.head_dim, self.head_dim)
        self.second_bias = self._weight("second_bias", self.head_dim, initializer="zeros")

    def of_query(self, query):
        query = super().of_query(query)
        return query + self._spread(self.first_bias, query)

    def hidden(self, query, key):
        hidden = per_head(super().hidden(query, key), self.matrix)
        return ops.tanh(hidden + self._spread(self.second_bias, hidden))


SCORES = {
    "dot": DotScore,
    "general": GeneralScore,
    "cosine": CosineScore,
    "additive": AdditiveScore,
    "mlp": MLPScore,
}


def to_unit_length(x):
    """Vectors of length 1, in float32."""
    x = ops.cast(x, "float32")
    return x * ops.rsqrt(ops.sum(ops.square(x), axis=-1, keepdims=True) + 1e-12)
