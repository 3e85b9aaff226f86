"""Attention whose weights are not a matter of queries and keys: the Synthesizer."""

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention import slots
from keras_transformer.attention.options import check_flag, check_positive, choose
from keras_transformer.attention.scores import per_head
from keras_transformer.attention.softmax import SoftmaxAttention, softmax

KINDS = {"dense": ("query", "value"), "random": ("value",)}


@keras.saving.register_keras_serializable("keras_transformer")
class SynthesizerAttention(SoftmaxAttention):
    """softmax(S) V with synthetic scores S (Tay et al. 2021, "Synthesizer").

    "dense": each place's own query gives its row of scores, S_t = W2 relu(W1 q_t + b1) + b2.
    "random": S is a matrix of weights. With `rank`, both are factorised: a dense row is the product
    of a row of `rank` scores and one of max_length / rank, each repeated to the whole length; a
    random matrix is R1 R2'. (The two dense rows share W1, which the paper has twice.) With `mixed`,
    the scores are a S + (1 - a) Q K' / sqrt(K), with a learned a for each head.

    Within a sequence only, as in the paper: its scores are for places, whatever stands there.

    Cost: O(N^2), and weights for `max_length` places; those beyond share the last one's. Choose it
    to find out how much of attention a task needs; mixed, it can be better than `dot` alone.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism.
        kind: "dense" or "random".
        rank: of the factorised forms; None for the plain ones.
        mixed: whether the scaled dot product has a share.
        max_length: how many places have weights of their own.
    """

    can_cross = False

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        kind="dense",
        rank=None,
        mixed=False,
        max_length=256,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, causal, dropout, **kwargs)
        self.projections = choose(KINDS, "kind", kind)
        if check_flag("mixed", mixed):
            self.projections = ("query", "key", "value")
        self.kind = kind
        self.rank = rank if rank is None else check_positive("rank", rank)
        self.mixed = mixed
        self.max_length = check_positive("max_length", max_length)

    @property
    def compares_by_dot_product(self):
        # The dense one reads the query through matrices as well.
        return self.mixed and self.kind == "random"

    def build(self, query_shape, key_shape, value_shape):
        super().build(query_shape, key_shape, value_shape)
        heads, size, length = self.num_heads, self.head_dim, self.max_length

        def weight(name, *shape, initializer=None):
            initializer = initializer or keras.initializers.RandomNormal(stddev=size**-0.5)
            return self.add_weight(shape=(heads, *shape), initializer=initializer, name=name)

        if self.kind == "dense":
            widths = [length] if self.rank is None else [self.rank, -(-length // self.rank)]
            self.inner = weight("inner", size, size)
            self.inner_bias = weight("inner_bias", 1, size, initializer="zeros")
            self.outer = [weight(f"outer_{n}", size, width) for n, width in enumerate(widths)]
            self.outer_bias = [
                weight(
                    f"outer_bias_{n}", 1, width, initializer="zeros" if len(widths) == 1 else None
                )
                for n, width in enumerate(widths)
            ]
        elif self.rank is None:
            self.table = weight("table", length, length)
        else:
            self.factors = [weight(f"factor_{n}", length, self.rank) for n in range(2)]
        if self.mixed:
            self.mix = weight("mix", initializer="zeros")

    def call(self, query, key, value, keep=None, return_attention_scores=False):
        num_queries, num_keys = ops.shape(query)[2], ops.shape(value)[2]
        mask = masks.visible(num_queries, num_keys, keep, self.causal)
        scores = self._synthesize(query, masks.positions(num_queries), num_keys)
        memory = {"key": key, "value": value}
        output, weights = self._mix_and_weigh(query, memory, scores, mask)
        return (output, weights) if return_attention_scores else output

    def start(self, batch_size, length):
        names = ("key", "value") if self.mixed else ("value",)
        shape = (batch_size, self.num_heads, length, self.head_dim)
        return {name: slots.make(*shape, self.compute_dtype) for name in names}

    def step(self, query, key, value, state, index):
        given = {"key": key, "value": value}
        state = {name: slots.write(state[name], given[name], index) for name in state}
        length = ops.shape(state["value"])[2]
        scores = self._synthesize(query, masks.positions(1, index), length)
        mask = masks.visible(1, length, causal=True, offset=index)
        output, _ = self._mix_and_weigh(query, state, scores, mask)
        return output, state

    def _mix_and_weigh(self, query, memory, scores, mask):
        if self.mixed:
            share = ops.cast(ops.sigmoid(self.mix), scores.dtype)[None, :, None, None]
            scores = share * scores + (1 - share) * self._scores(query, memory["key"])
        batch_size = ops.shape(memory["value"])[0]
        scores = ops.broadcast_to(scores, (batch_size, *ops.shape(scores)[1:]))
        weights = softmax(scores, mask)
        return ops.matmul(self.weight_dropout(weights), memory["value"]), weights

    def _synthesize(self, query, places, num_keys):
        """The scores [B or 1, H, T, num_keys] of queries at these places."""
        dtype, last = query.dtype, self.max_length - 1
        keys = ops.minimum(masks.positions(num_keys), last)
        if self.kind == "random":
            rows = ops.minimum(places, last)
            if self.rank is None:
                scores = ops.take(ops.take(self.table, rows, axis=1), keys, axis=2)
            else:
                of_rows, of_keys = self.factors
                scores = ops.einsum(
                    "htr,hsr->hts", ops.take(of_rows, rows, axis=1), ops.take(of_keys, keys, axis=1)
                )
            return ops.cast(scores, dtype)[None]
        hidden = per_head(query, self.inner) + ops.cast(self.inner_bias, dtype)
        rows = [
            per_head(ops.relu(hidden), outer) + ops.cast(bias, dtype)
            for outer, bias in zip(self.outer, self.outer_bias, strict=True)
        ]
        if self.rank is None:
            return ops.take(rows[0], keys, axis=-1)
        return ops.take(rows[0], keys % self.rank, -1) * ops.take(rows[1], keys // self.rank, -1)
