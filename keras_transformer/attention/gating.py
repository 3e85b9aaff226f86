"""A learned mixing of places that gates: gMLP."""

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention import slots
from keras_transformer.attention.mechanism import Mechanism
from keras_transformer.attention.options import check_positive


@keras.saving.register_keras_serializable("keras_transformer")
class SpatialGating(Mechanism):
    """u * (W LayerNorm(v) + b), of u = gelu(q) and v = gelu(value) (Liu et al. 2021, "gMLP").

    W [N, N] is learned for each head, and normalised are the components of a head; b begins at 1
    and W near 0, so that at first it lets u through. The attention scores that it can return are W.

    Cost: O(N^2), and weights for `max_length` places; those beyond share the last one's. Choose it
    to see how far a static mixing of places goes.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism; nothing is dropped.
        max_length: how many places have weights of their own.
    """

    can_cross = False
    compares_by_dot_product = False
    projections = ("query", "value")

    def __init__(self, num_heads, head_dim, causal=False, dropout=0.0, max_length=256, **kwargs):
        super().__init__(num_heads, head_dim, causal, dropout, **kwargs)
        self.max_length = check_positive("max_length", max_length)
        self.layer_norm = keras.layers.LayerNormalization(epsilon=1e-5, dtype=self.dtype_policy)

    def build(self, query_shape, key_shape, value_shape):
        self.layer_norm.build((None, None, None, self.head_dim))
        self.matrix = self.add_weight(
            shape=(self.num_heads, self.max_length, self.max_length),
            initializer=keras.initializers.RandomNormal(stddev=1e-2),
            name="matrix",
        )
        self.offset = self.add_weight(
            shape=(self.num_heads, self.max_length), initializer="ones", name="offset"
        )

    def call(self, query, key, value, keep=None, return_attention_scores=False):
        batch_size, _, length, _ = ops.shape(value)
        weights, offset = self._rows(masks.positions(length), length, value.dtype)
        value = self._value(value)
        if keep is not None:
            value = ops.where(keep[:, None, :, None], value, ops.cast(0, value.dtype))
        output = self._gate(query, weights, value, offset)
        if not return_attention_scores:
            return output
        scores = ops.broadcast_to(weights, (batch_size, *ops.shape(weights)))
        if keep is not None:
            scores = ops.where(keep[:, None, None, :], scores, ops.cast(0, scores.dtype))
        return output, scores

    def start(self, batch_size, length):
        shape = (batch_size, self.num_heads, length, self.head_dim)
        return {"value": slots.make(*shape, self.compute_dtype)}

    def step(self, query, key, value, state, index):
        kept = slots.write(state["value"], self._value(value), index)
        weights, offset = self._rows(masks.positions(1, index), ops.shape(kept)[2], value.dtype)
        return self._gate(query, weights, kept, offset), {"value": kept}

    def _value(self, value):
        return self.layer_norm(ops.gelu(value, approximate=False))

    def _gate(self, query, weights, value, offset):
        mixed = ops.einsum("hts,bhsk->bhtk", weights, value) + offset
        return ops.gelu(query, approximate=False) * mixed

    def _rows(self, places, num_keys, dtype):
        """W [H, T, S], 0 where a key is not seen, and b [H, T, 1] at these places."""
        last = self.max_length - 1
        keys = masks.positions(num_keys)
        rows, columns = ops.minimum(places, last), ops.minimum(keys, last)
        weights = ops.take(ops.take(self.matrix, rows, axis=1), columns, axis=2)
        if self.causal:
            weights = ops.where(keys[None, :] <= places[:, None], weights, 0.0)
        offset = ops.take(self.offset, rows, axis=1)[..., None]
        return ops.cast(weights, dtype), ops.cast(offset, dtype)
