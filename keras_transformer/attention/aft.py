"""Weights of keys and positions alone: the Attention Free Transformer."""

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention import blocks, slots
from keras_transformer.attention.linear import divide, exponential
from keras_transformer.attention.mechanism import Mechanism
from keras_transformer.attention.options import check_positive, choose
from keras_transformer.attention.patterns import extent

# The kinds, and the options that each of them has, with what they are by default.
KINDS = {"simple": {}, "local": {"window": 64}, "full": {"max_length": 256, "rank": 32}}


@keras.saving.register_keras_serializable("keras_transformer")
class AttentionFree(Mechanism):
    """sigmoid(q_t) * sum_s exp(k_s + w_ts) v_s / sum_s exp(k_s + w_ts), component by component.

    Zhai et al. 2021, "An Attention Free Transformer". "simple": w is 0. "local": w depends on the
    distance and is 0 outside of a window (where the paper learns a w for each pair of places; so is
    its convolutional form). "full": w is learned for each pair of places, as u_t'v_s of a `rank`.

    The attention scores that it can return are the means over a head's components, without the
    sigmoid.

    Cost: "simple" O(N), "local" O(N window), "full" O(N^2), each times K. Decoding keeps K sums, a
    window, or everything. Choose it where a memory of constant size and no products of matrices
    matter more than the last bit of quality.

    Args:
        num_heads, head_dim, causal: as of every mechanism.
        dropout: not used: there are no weights that could be dropped.
        kind: "simple", "local" or "full".
        window: how far the w of "local" reach: half of it to each side or, if causal, back; by
            default 64. The other kinds have none.
        max_length: how many places "full" has a w for; those beyond share the last one's; by
            default 256. The other kinds have none.
        rank: of w in "full", by default 32. The other kinds have none.
    """

    compares_by_dot_product = False

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        kind="simple",
        window=None,
        max_length=None,
        rank=None,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, causal, dropout, **kwargs)
        self.kind = kind
        given = {"window": window, "max_length": max_length, "rank": rank}
        options = dict(choose(KINDS, "kind", kind))
        for name, value in given.items():
            if value is not None:
                if name not in options:
                    (owner,) = (each for each, own in KINDS.items() if name in own)
                    raise ValueError(f"{name}={value!r} is for kind={owner!r}, not for {kind!r}.")
                options[name] = check_positive(name, value)
        self.window, self.max_length, self.rank = map(options.get, given)
        self.before, self.after = extent(self.window, causal) if self.window else (0, 0)

    @property
    def can_cross(self):
        """Where positions of the two sequences have nothing to do with each other."""
        return self.kind == "simple"

    def build(self, query_shape, key_shape, value_shape):
        def weight(name, stddev, *shape):
            normal = keras.initializers.RandomNormal(stddev=stddev)
            return self.add_weight(shape=(self.num_heads, *shape), initializer=normal, name=name)

        if self.kind == "local":
            self.table = weight("table", 0.2, self.before + self.after + 1)  # of the distances
        if self.kind == "full":
            shape = (self.max_length, self.rank)
            self.of_queries = weight("of_queries", self.rank**-0.5, *shape)
            self.of_keys = weight("of_keys", self.rank**-0.5, *shape)

    def call(self, query, key, value, keep=None, return_attention_scores=False):
        key, both = _both(key, value, keep)
        sums = self._sums(both, ops.shape(query)[2])
        output = self._divide(query, sums)
        if not return_attention_scores:
            return output
        return output, ops.cast(self._scores(key, sums), output.dtype)

    def _sums(self, both, num_queries):
        """The two sums [B, H, T, 2 K] of what goes into them."""
        if self.kind == "full":
            weights = self._weights(num_queries, ops.shape(both)[2])
            return ops.einsum("hts,bhsk->bhtk", weights, both)
        if self.causal:
            sums = ops.cumsum(both, axis=2)
        else:
            sums = ops.sum(both, axis=2, keepdims=True)
            sums = ops.broadcast_to(sums, (*ops.shape(both)[:2], num_queries, both.shape[-1]))
        return sums if self.kind == "simple" else sums + self._local_sums(both)

    def _local_sums(self, both):
        """What w adds in the window: sum_s (exp(w) - 1) of what goes into the sums."""
        _, (near,), distance = blocks.windows([], [both], self.before, self.after)
        more = self._more(distance)  # [H, size, num_keys]
        return blocks.join(ops.einsum("hts,bhnsk->bhntk", more, near), ops.shape(both)[2])

    def _more(self, distance):
        """exp(w) - 1 for distances, [H, ...]; 0 outside of the window."""
        inside = (distance >= -self.before) & (distance <= self.after)
        row = ops.clip(distance + self.before, 0, self.before + self.after)
        # Within bounds: what a sum has lost to a weight of nearly -1 would be rounding alone.
        table = ops.clip(ops.cast(ops.convert_to_tensor(self.table), "float32"), -8.0, 8.0)
        return ops.where(inside, ops.expm1(ops.take(table, row, axis=1)), 0.0)

    def _weights(self, num_queries, num_keys, offset=0):
        """exp(w) [H, T, S] of "full", 0 where a key is not seen."""
        last = self.max_length - 1
        rows = ops.minimum(masks.positions(num_queries, offset), last)
        keys = ops.minimum(masks.positions(num_keys), last)
        of_rows, of_keys = (
            ops.cast(ops.take(table, places, axis=1), "float32")
            for table, places in ((self.of_queries, rows), (self.of_keys, keys))
        )
        weights = ops.exp(ops.einsum("htr,hsr->hts", of_rows, of_keys) * self.rank**-0.5)
        mask = masks.visible(num_queries, num_keys, causal=self.causal, offset=offset)
        return weights if mask is None else ops.where(mask[0], weights, 0.0)

    def _scores(self, key, sums):
        """The mean over the components of exp(k_s + w_ts) over its sum."""
        length = ops.shape(key)[2]
        _, total = ops.split(sums, 2, axis=-1)
        share = divide(1.0 / self.head_dim, ops.maximum(total, 1e-30))
        scores = ops.einsum("bhsk,bhtk->bhts", key, share)
        if self.kind == "full":
            return scores * self._weights(length, length)[None]
        place = masks.positions(length)
        if self.kind == "local":
            scores = scores * (1 + self._more(place[None, :] - place[:, None]))[None]
        mask = masks.visible(ops.shape(sums)[2], length, causal=self.causal)
        return scores if mask is None else ops.where(mask, scores, 0.0)

    def start(self, batch_size, length):
        shape = (batch_size, self.num_heads)
        state = {}
        if self.kind != "full":
            state["sums"] = ops.zeros((*shape, 1, 2 * self.head_dim), "float32")
            length = blocks.at_most(self.before + 1, length)
        if self.kind != "simple":
            state["both"] = slots.make(*shape, length, 2 * self.head_dim, "float32")
        return state

    def step(self, query, key, value, state, index):
        _, both = _both(key, value)
        if self.kind == "full":
            kept = slots.write(state["both"], both, index)
            weights = self._weights(1, ops.shape(kept)[2], index)
            sums = ops.einsum("hts,bhsk->bhtk", weights, kept)
            return self._divide(query, sums), {"both": kept}
        state = state | {"sums": state["sums"] + both}
        sums = state["sums"]
        if self.kind == "local":
            length = ops.shape(state["both"])[2]
            state["both"] = slots.write(state["both"], both, index % length)
            distance = -((index - masks.positions(length)) % length)
            distance = ops.where(index + distance >= 0, distance, -self.before - 1)  # not yet there
            sums = sums + ops.einsum("hts,bhsk->bhtk", self._more(distance)[:, None], state["both"])
        return self._divide(query, sums), state

    def remember(self, key, value, keep=None):
        key, both = _both(key, value, keep)
        return {"key": key, "sums": ops.sum(both, axis=2, keepdims=True)}

    def recall(self, query, memory, state):
        output = self._divide(query, memory["sums"])
        scores = self._scores(memory["key"], memory["sums"])
        scores = ops.broadcast_to(scores, (*ops.shape(query)[:3], ops.shape(scores)[-1]))
        return output, ops.cast(scores, output.dtype), state

    def _divide(self, query, sums):
        values, total = ops.split(sums, 2, axis=-1)
        mean = divide(values, ops.maximum(total, 1e-30))
        return ops.cast(ops.sigmoid(ops.cast(query, "float32")) * mean, query.dtype)


def _both(key, value, keep=None):
    """exp(k) [B, H, S, K], and what goes into the two sums, [B, H, S, 2 K]: exp(k) v and exp(k)."""
    key = exponential(key, keep)
    return key, ops.concatenate([key * ops.cast(value, "float32"), key], axis=-1)
