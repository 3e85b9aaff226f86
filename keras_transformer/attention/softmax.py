"""Softmax attention: weights from scores, a weighted sum of values."""

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention import slots
from keras_transformer.attention.mechanism import Mechanism


def softmax(scores, mask=None):
    """Attention weights from scores [B, H, T, S], in float32 whatever the scores' type."""
    if scores.shape[-1] == 1:  # Keras would warn of a softmax over one place
        return ops.ones_like(scores)
    weights = ops.softmax(masks.hide(ops.cast(scores, "float32"), mask), axis=-1)
    return ops.cast(weights, scores.dtype)


@keras.saving.register_keras_serializable("keras_transformer")
class DotProductAttention(Mechanism):
    """Scaled dot-product attention, softmax(Q K' / sqrt(d_k)) V (Vaswani et al. 2017, equation 1).

    The dot product of two vectors of d_k independent, unit-variance components has variance d_k;
    divided by sqrt(d_k) its variance is 1, and the softmax keeps a gradient.

    Args:
        num_heads: H, the heads of this group.
        head_dim: K, the size of each head.
        causal: whether a place may look at itself and earlier places only.
        dropout: rate of dropout on the attention weights (not in the paper, but in its code).

    Call arguments:
        query: [B, H, T, K].
        key: [B, H, S, K].
        value: [B, H, S, K].
        keep: bool [B, S], True where a key may be looked at.
        return_attention_scores: whether to return the weights [B, H, T, S] as well.

    Returns:
        [B, H, T, K], or that and the attention scores.

    Example:

    >>> import keras
    >>> from keras_transformer import DotProductAttention
    >>> query = keras.random.normal((2, 4, 3, 8))
    >>> memory = keras.random.normal((2, 4, 5, 8))
    >>> attention = DotProductAttention(num_heads=4, head_dim=8)
    >>> output, scores = attention(query, memory, memory, return_attention_scores=True)
    >>> tuple(output.shape), tuple(scores.shape)
    ((2, 4, 3, 8), (2, 4, 3, 5))
    """

    def __init__(self, num_heads, head_dim, causal=False, dropout=0.0, **kwargs):
        super().__init__(num_heads, head_dim, causal, dropout, **kwargs)
        self.weight_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def call(self, query, key, value, keep=None, return_attention_scores=False):
        mask = masks.visible(ops.shape(query)[2], ops.shape(key)[2], keep, self.causal)
        output, scores = self._attend(query, key, value, mask)
        return (output, scores) if return_attention_scores else output

    def start(self, batch_size, length):
        shape = (batch_size, self.num_heads, length, self.head_dim)
        return {name: slots.make(*shape, self.compute_dtype) for name in ("key", "value")}

    def step(self, query, key, value, state, index):
        state = {
            "key": slots.write(state["key"], key, index),
            "value": slots.write(state["value"], value, index),
        }
        mask = masks.visible(1, ops.shape(state["key"])[2], causal=True, offset=index)
        output, _ = self._attend(query, state["key"], state["value"], mask)
        return output, state

    def _attend(self, query, key, value, mask):
        # Scaling the queries is the cheaper side: T x K numbers instead of T x S.
        query = query * self.head_dim**-0.5
        weights = softmax(ops.einsum("bhtk,bhsk->bhts", query, key), mask)  # [B, H, T, S]
        output = ops.einsum("bhts,bhsk->bhtk", self.weight_dropout(weights), value)
        return output, weights
