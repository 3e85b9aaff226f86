"""Softmax attention: weights from scores, a weighted sum of values."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention import blocks, slots
from keras_transformer.attention.bias import BIASES
from keras_transformer.attention.mechanism import Mechanism
from keras_transformer.attention.options import check_positive, choose
from keras_transformer.attention.scores import SCORES


def softmax(scores, mask=None):
    """Attention weights from scores [B, H, T, S], in float32 whatever the scores' type."""
    if scores.shape[-1] == 1:  # Keras would warn of a softmax over one place
        return ops.ones_like(scores)
    weights = ops.softmax(masks.hide(ops.cast(scores, "float32"), mask), axis=-1)
    return ops.cast(weights, scores.dtype)


def attend_to_seen(scores, mask, value, dropout):
    """Attention [..., T, K] to the keys that a mask leaves; 0 where it leaves none.

    Args:
        scores: [..., T, S].
        mask: bool, broadcastable to the scores, True where a key is seen.
        value: [..., S, K].
        dropout: a layer for the weights.
    """
    output = ops.matmul(dropout(ops.cast(softmax(scores, mask), value.dtype)), value)
    return ops.where(ops.any(mask, axis=-1, keepdims=True), output, 0)


class Partial(NamedTuple):
    """Attention to a part of the keys, which `merge` puts together with that to other parts."""

    largest: Any  # [..., T, 1], float32, what the scores were lessened by
    total: Any  # [..., T, 1], float32, the sum of the exponentials
    output: Any  # [..., T, K], the mean of the values by their exponentials


def attend_partly(scores, mask, value, dropout):
    """Attention to keys that are not all there are.

    Args:
        scores: [..., T, S].
        mask: bool, broadcastable to the scores, True where a key is seen.
        value: [..., S, K].
        dropout: a layer for the weights.
    """
    scores = masks.hide(ops.cast(scores, "float32"), mask)
    largest = ops.max(scores, axis=-1, keepdims=True, initial=masks.HIDDEN)
    largest = ops.stop_gradient(largest)
    weights = ops.exp(scores - largest)  # 0 for what is hidden, unless all is
    total = ops.sum(weights, axis=-1, keepdims=True)
    # A mean and not a sum, which float16 may have no room for.
    output = ops.matmul(dropout(ops.cast(weights / total, value.dtype)), value)
    total = ops.where(largest > masks.HIDDEN, total, 0.0)  # nothing is seen
    return Partial(largest, total, output)


def merge(parts):
    """The output [..., T, K] of one softmax over the keys of all parts; 0 where none is seen."""
    largest = parts[0].largest
    for part in parts[1:]:
        largest = ops.maximum(largest, part.largest)
    shares = [ops.exp(part.largest - largest) * part.total for part in parts]
    total = sum(shares)
    output = sum(
        share * ops.cast(part.output, "float32") for share, part in zip(shares, parts, strict=True)
    )
    return ops.cast(output / ops.where(total > 0, total, 1.0), parts[0].output.dtype)


class SoftmaxAttention(Mechanism):
    """What all softmax attention shares: a score, a relative bias, slots while decoding.

    Args:
        num_heads: H, the heads of this group.
        head_dim: K, the size of each head.
        causal: whether a place may look at itself and earlier places only.
        dropout: rate of dropout on the attention weights (not in the paper, but in its code).
        score: how well a query and a key fit: "dot", "general", "cosine", "additive" or "mlp".
        scale: what dot and general scores are multiplied with; by default 1 / sqrt(K).
        bias: what the distance adds to the score: "alibi", "t5", "shaw", "xl", or None.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        score="dot",
        scale=None,
        bias=None,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, causal, dropout, **kwargs)
        dtype = self.dtype_policy
        if scale is not None:
            check_positive("scale", scale, (int, float))
        self.score = choose(SCORES, "score", score)(num_heads, head_dim, scale, dtype=dtype)
        self.bias = None
        if bias is not None:
            make = choose(BIASES, "bias", bias)
            self.bias = make(num_heads, head_dim, causal, self.score.scale, dtype=dtype)
        self.weight_dropout = keras.layers.Dropout(dropout, dtype=dtype)

    @property
    def can_cross(self):
        """Positions of two sequences have no distance."""
        return self.bias is None

    @property
    def compares_by_dot_product(self):
        return self.score.is_dot_product and not (self.bias and self.bias.reads_query)

    def build(self, query_shape, key_shape, value_shape):
        self.score.build(None)
        if self.bias is not None:
            self.bias.build(None)

    def start(self, batch_size, length):
        length = self._num_slots(length)
        sizes = {"key": self.score.key_dim, "value": self.head_dim}
        return {
            name: slots.make(batch_size, self.num_heads, length, size, self.compute_dtype)
            for name, size in sizes.items()
        }

    def step(self, query, key, value, state, index):
        slot, places = self._slots(index, ops.shape(state["key"])[2])
        state = {
            "key": slots.write(state["key"], self.score.of_key(key), slot),
            "value": slots.write(state["value"], value, slot),
        }
        mask = (places >= 0) & self.sees(index, places)  # [length]
        bias = None if self.bias is None else self.bias.of_distances(query, places - index)
        output, _ = self._weigh(query, state, mask[None, None, None], bias)
        return output, state

    def sees(self, query, key):
        """Whether the query at a position looks at the key at another, where both are tokens."""
        return key <= query if self.causal else key == key

    # So many first places are looked at from everywhere.
    global_tokens = 0

    @property
    def farthest(self):
        """How far back a place looks beside those; None for no limit."""
        return None

    def _num_slots(self, length):
        """How many places have to be kept to decode `length` of them."""
        if self.farthest is None:
            return length
        return blocks.at_most(self.global_tokens + self.farthest + 1, length)

    def _slots(self, index, length):
        """Which slot the place `index` goes to, and the places [length] that are in the slots."""
        places = masks.positions(length)
        if self.farthest is None:
            return index, places
        # The first places keep theirs. The others take turns, and a slot holds the last of those
        # that had it; -1 where there was none.
        first = self.global_tokens
        turns = ops.maximum(length - first, 1)
        slot = ops.where(index < first, index, first + (index - first) % turns)
        last = index - (index - places) % turns
        return slot, ops.where(places < first, places, ops.where(last < first, -1, last))

    def _weigh(self, query, memory, mask, bias=None):
        """The output [B, H, T, K] and the weights [B, H, T, S], of a memory's key and value."""
        weights = softmax(self._scores(query, memory["key"], bias), mask)
        output = ops.einsum("bhts,bhsk->bhtk", self.weight_dropout(weights), memory["value"])
        return output, weights

    def _scores(self, query, key, bias=None):
        """The scores of queries, and of keys of which `of_key` has been taken."""
        scores = self.score.pair(self._of_query(query), key)
        return scores if bias is None else scores + bias

    def _prepare(self, query, key):
        """What is compared of queries and keys."""
        return self._of_query(query), self.score.of_key(key)

    def _of_query(self, query):
        if self.bias is not None:
            query = self.bias.of_content(query)
        return self.score.of_query(query)
