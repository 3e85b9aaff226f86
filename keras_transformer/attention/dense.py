"""Attention of every place to every place, by one of the score functions."""

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention.softmax import SoftmaxAttention


class DenseAttention(SoftmaxAttention):
    """Softmax attention to all keys: O(T S) in time and memory."""

    def call(self, query, key, value, keep=None, return_attention_scores=False):
        num_queries, num_keys = ops.shape(query)[2], ops.shape(key)[2]
        mask = masks.visible(num_queries, num_keys, keep, self.causal)
        memory = {"key": self.score.of_key(key), "value": value}
        bias = None if self.bias is None else self.bias.scores(query, num_keys)
        output, scores = self._weigh(query, memory, mask, bias)
        return (output, scores) if return_attention_scores else output

    def remember(self, key, value, keep=None):
        return super().remember(self.score.of_key(key), value, keep)

    def recall(self, query, memory, state):
        keep = memory.get("keep")
        mask = masks.visible(ops.shape(query)[2], ops.shape(memory["key"])[2], keep)
        return *self._weigh(query, memory, mask), state


@keras.saving.register_keras_serializable("keras_transformer")
class DotProductAttention(DenseAttention):
    """Scaled dot-product attention, softmax(Q K' / sqrt(d_k)) V (Vaswani et al. 2017, equation 1).

    The dot product of two vectors of d_k independent, unit-variance components has variance d_k;
    divided by sqrt(d_k) its variance is 1, and the softmax keeps a gradient.

    Cost: O(N^2). Choose it for sentences, and wherever N^2 fits: nothing is approximated, and all
    else is measured by it.

    Args:
        num_heads: H, the heads of this group.
        head_dim: K, the size of each head.
        causal: whether a place may look at itself and earlier places only.
        dropout: rate of dropout on the attention weights (not in the paper, but in its code).
        scale: instead of 1 / sqrt(d_k); 1.0 for the plain dot product of Luong et al. 2015.
        bias: what the distance of a key adds to its score: "shaw" (Shaw et al. 2018), "t5" (Raffel
            et al. 2020), "alibi" (Press et al. 2022), "xl" (Dai et al. 2019), or None. Within a
            sequence only.

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

    def __init__(
        self, num_heads, head_dim, causal=False, dropout=0.0, scale=None, bias=None, **kwargs
    ):
        super().__init__(num_heads, head_dim, causal, dropout, scale=scale, bias=bias, **kwargs)


@keras.saving.register_keras_serializable("keras_transformer")
class GeneralAttention(DenseAttention):
    """Softmax attention by the "general" score q'W k of Luong et al. 2015, over sqrt(K).

    Cost: O(N^2). The dot product of one more linear map of the queries, which the projections of a
    layer could do as well: choose it to compare.

    Args:
        num_heads, head_dim, causal, dropout, scale, bias: as of `DotProductAttention`.
    """

    def __init__(
        self, num_heads, head_dim, causal=False, dropout=0.0, scale=None, bias=None, **kwargs
    ):
        super().__init__(num_heads, head_dim, causal, dropout, "general", scale, bias, **kwargs)


@keras.saving.register_keras_serializable("keras_transformer")
class CosineAttention(DenseAttention):
    """Softmax attention by b cos(q, k) with a learned b for each head (Graves et al. 2014).

    Cost: O(N^2). Scores are bounded by b, whatever the length of the vectors: choose it where
    training with `dot` runs away, as in low precision.

    Args:
        num_heads, head_dim, causal, dropout, bias: as of `DotProductAttention`.
    """

    def __init__(self, num_heads, head_dim, causal=False, dropout=0.0, bias=None, **kwargs):
        super().__init__(num_heads, head_dim, causal, dropout, "cosine", bias=bias, **kwargs)


@keras.saving.register_keras_serializable("keras_transformer")
class AdditiveAttention(DenseAttention):
    """Softmax attention by v'tanh(W q + U k) (Bahdanau et al. 2015).

    Cost: O(N^2 K) in memory as well as in time, K times that of `dot`: choose it for short
    sequences, as in the RNN models that it comes from.

    Args:
        num_heads, head_dim, causal, dropout, bias: as of `DotProductAttention`.
    """

    def __init__(self, num_heads, head_dim, causal=False, dropout=0.0, bias=None, **kwargs):
        super().__init__(num_heads, head_dim, causal, dropout, "additive", bias=bias, **kwargs)


@keras.saving.register_keras_serializable("keras_transformer")
class MLPAttention(DenseAttention):
    """Softmax attention by a perceptron of [q; k], v'tanh(M tanh(W q + U k + a) + b).

    The alignment model of Bahdanau et al. 2015 with one more hidden layer. Cost: O(N^2 K) in memory
    and O(N^2 K^2) in time: the most flexible score, for very short sequences.

    Args:
        num_heads, head_dim, causal, dropout, bias: as of `DotProductAttention`.
    """

    def __init__(self, num_heads, head_dim, causal=False, dropout=0.0, bias=None, **kwargs):
        super().__init__(num_heads, head_dim, causal, dropout, "mlp", bias=bias, **kwargs)
