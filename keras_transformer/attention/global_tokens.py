"""Attention through a few special tokens, taken from the sequence or added to it."""

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention.options import check_flag, check_positive
from keras_transformer.attention.patterns import PatternAttention


@keras.saving.register_keras_serializable("keras_transformer")
class GlobalAttention(PatternAttention):
    """Attention through a few special tokens that look at all places and are looked at by all.

    By default they are the first `count` places of the sequence: softmax over the s < count, and
    over all s for t < count, of q_t'k_s / sqrt(K) (Beltagy et al. 2020, "Longformer", but with the
    same projections for global and other places).

    With `added` they are not in it (Ainslie et al. 2020, "ETC"; Lee et al. 2019, "Set
    Transformer"): learned queries collect from all places, softmax(G K') V, and every place looks
    at what they have collected, by learned keys. (ETC carries such tokens from layer to layer; here
    each layer has its own.)

    Cost: O(N count) in time and memory; decoding keeps `count` places. Choose it beside `local`, to
    carry what concerns the whole.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism.
        count: how many special tokens there are.
        added: whether they are added, instead of taken from the sequence. Those see the whole
            sequence and cannot be causal.
        score: "dot", "general", "cosine", "additive" or "mlp".
        bias: what the distance adds to the score, where the tokens are taken from the sequence.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        count=1,
        added=False,
        score="dot",
        bias=None,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, causal, dropout, count, score, bias=bias, **kwargs)
        self.count = check_positive("count", count)
        self.added = check_flag("added", added)
        if added and bias is not None:
            raise ValueError("Added tokens stand nowhere: leave out the bias.")

    @property
    def can_be_causal(self):
        return not self.added

    @property
    def can_cross(self):
        return self.added

    @property
    def compares_by_dot_product(self):
        return not self.added and super().compares_by_dot_product

    def build(self, query_shape, key_shape, value_shape):
        super().build(query_shape, key_shape, value_shape)
        if self.added:
            self.token_query, self.token_key = (
                self.add_weight(
                    shape=(self.num_heads, self.count, self.head_dim),
                    initializer=keras.initializers.RandomNormal(),
                    name=name,
                )
                for name in ("token_query", "token_key")
            )

    farthest = 0  # a slot for the place itself, though it is not looked at

    def near(self, distance):
        return distance != distance

    def attend_near(self, query, key, value, keep):
        return []

    def attend(self, query, key, value, keep):
        if not self.added:
            return super().attend(query, key, value, keep)
        output, _ = self._look_at_tokens(query, self.remember(key, value, keep))
        return output

    def remember(self, key, value, keep=None):
        query = ops.cast(self.token_query, key.dtype)[None]  # [1, H, count, K]
        query = ops.broadcast_to(query, (ops.shape(key)[0], *query.shape[1:]))
        memory = {"key": self.score.of_key(key), "value": value}
        mask = masks.visible(self.count, ops.shape(key)[2], keep)
        collected, weights = self._weigh(query, memory, mask)
        return {"collected": collected, "weights": weights}

    def recall(self, query, memory, state):
        output, weights = self._look_at_tokens(query, memory)
        return output, ops.matmul(weights, memory["weights"]), state

    def _look_at_tokens(self, query, memory):
        """The output [B, H, T, K], and the weights [B, H, T, count] of the added tokens."""
        key = self.score.of_key(ops.cast(self.token_key, query.dtype)[None])
        key = ops.broadcast_to(key, (ops.shape(query)[0], *key.shape[1:]))
        return self._weigh(query, {"key": key, "value": memory["collected"]}, None)
