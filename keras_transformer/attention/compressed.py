"""Softmax attention to fewer keys than there are places: Linformer, strided convolution."""

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention import blocks, slots
from keras_transformer.attention.mechanism import Mechanism
from keras_transformer.attention.options import check_positive
from keras_transformer.attention.softmax import attend_to_seen, softmax


class CompressedAttention(Mechanism):
    """Softmax attention to R keys and values, each a sum of those of all places.

    softmax(Q (E K)' / sqrt(K)) F V, with E and F of [R, S]. Where a key is made of the whole
    sequence, this cannot be causal.
    """

    can_be_causal = False
    weights_are_probabilities = False  # those of places, which E and F make of them

    def __init__(self, num_heads, head_dim, causal=False, dropout=0.0, **kwargs):
        super().__init__(num_heads, head_dim, causal, dropout, **kwargs)
        self.weight_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def compressions(self, keep, dtype):
        """The two matrices [B, H, R, S], E and F, and which keys there are: bool [B, R]."""
        raise NotImplementedError

    def remember(self, key, value, keep=None):
        if keep is None:
            keep = ops.ones((ops.shape(key)[0], ops.shape(key)[2]), "bool")
        of_key, of_value, mask = self.compressions(keep, key.dtype)
        return {
            "key": ops.matmul(of_key, key),  # [B, H, R, K]
            "value": ops.matmul(of_value, value),
            "weights": of_value,
            "mask": mask,
        }

    def attend(self, query, key, value, keep):
        output, _ = self._look_at(query, self.remember(key, value, keep))
        return output

    def recall(self, query, memory, state):
        output, weights = self._look_at(query, memory)
        return output, ops.matmul(weights, memory["weights"]), state

    def _look_at(self, query, memory):
        """The output [..., T, K], and the weights [..., T, R] of what is left of the keys."""
        scores = self._scores(query, memory["key"])
        weights = softmax(scores, memory["mask"][:, None, None, :])
        return ops.matmul(self.weight_dropout(weights), memory["value"]), weights

    def _scores(self, query, key):
        return ops.einsum("...tk,...rk->...tr", query * self.head_dim**-0.5, key)


@keras.saving.register_keras_serializable("keras_transformer")
class LinformerAttention(CompressedAttention):
    """softmax(Q (E K)' / sqrt(K)) F V, with learned E, F of [rank, N] (Wang et al. 2020).

    Cost: O(N rank) in time and memory. Choose it for sequences of about one length: E and F are
    learned for positions, up to `max_length`.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism.
        rank: how many keys and values are left.
        max_length: the longest sequence.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        rank=64,
        max_length=1024,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, causal, dropout, **kwargs)
        self.rank = check_positive("rank", rank)
        self.max_length = self.longest = check_positive("max_length", max_length)

    def build(self, query_shape, key_shape, value_shape):
        self.key_map, self.value_map = (
            self.add_weight(
                shape=(self.rank, self.max_length),
                # Vectors of unit variance stay so, in a sequence of the longest length.
                initializer=keras.initializers.RandomNormal(stddev=self.max_length**-0.5),
                name=name,
            )
            for name in ("key_map", "value_map")
        )

    def compressions(self, keep, dtype):
        length = ops.shape(keep)[1]
        if isinstance(length, int) and length > self.max_length:
            raise ValueError(
                f"A sequence of {length} places came, but linformer has weights for max_length="
                f"{self.max_length}. Give it a larger max_length."
            )
        batch_size = ops.shape(keep)[0]
        places = masks.positions(length)  # not a slice: JAX has none of a length that is a symbol
        maps = [
            ops.cast(ops.take(each, places, axis=1), dtype)
            * ops.cast(keep, dtype)[:, None, None, :]
            for each in (self.key_map, self.value_map)
        ]  # the same for all heads
        shape = (batch_size, self.num_heads, self.rank, length)
        maps = [ops.broadcast_to(each, shape) for each in maps]
        return *maps, ops.ones((batch_size, self.rank), "bool")


@keras.saving.register_keras_serializable("keras_transformer")
class ConvolvedAttention(CompressedAttention):
    """Softmax attention to keys and values that a strided convolution has shortened.

    softmax(Q (E K)' / sqrt(K)) F V, with (E K)_r = sum_i e_i k_{r factor + i} over the i < factor,
    and F V alike, with weights f of its own.

    Memory-compressed attention (Liu et al. 2018): a convolution of width and stride `factor`, with
    a filter for each head. (The paper's also mixes components, as the projections do.) Of sequences
    longer than length * factor, the convolution reads the means of so many stretches of equal size:
    its stride grows with the sequence, and never more than `length` keys are left. (The paper's
    stride is 3 whatever the length, and its cost N^2 / 3.) Padding is taken to be at the end.

    If causal, key r is made of the `factor` places up to r factor, zeros before the first, and a
    place t sees the last `length` of the keys that are complete, those with r <= t / factor. As in
    the paper, the few places since then, and with factor > 1 often t itself, are left to other
    heads or layers.

    Cost: O(N length) in time and memory; decoding keeps `length` keys and values, and those that
    are being made. Choose it where a summary will do of what is far or, if causal, of the last
    length * factor places. (The paper's has no such window.)

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism.
        length: how many keys and values are left at most.
        factor: how many places, or stretches, make one of them.
    """

    can_be_causal = True

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        length=64,
        factor=3,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, causal, dropout, **kwargs)
        self.length = check_positive("length", length)
        self.factor = check_positive("factor", factor)

    def build(self, query_shape, key_shape, value_shape):
        self.key_filter, self.value_filter = (
            self.add_weight(
                shape=(self.factor, self.num_heads),
                initializer=keras.initializers.RandomNormal(1 / self.factor, 0.5 / self.factor),
                name=name,
            )
            for name in ("key_filter", "value_filter")
        )

    def compressions(self, keep, dtype):
        most = self.length * self.factor
        place = masks.positions(ops.shape(keep)[1])[None, :]  # [1, S]
        count = ops.sum(ops.cast(keep, "int32"), axis=1, keepdims=True)  # [B, 1], tokens
        # The stretch of each place; with few tokens each has its own.
        cell = ops.where(count <= most, place, place * most // ops.maximum(count, 1))  # [B, S]
        begin, end = (-(-(cell + more) * count // most) for more in (0, 1))
        size = ops.where(count <= most, 1, ops.maximum(end - begin, 1))
        # Which key a place goes into, and with what weight.
        num_keys = -(-blocks.at_most(most, ops.shape(keep)[1]) // self.factor)
        key = masks.positions(num_keys)
        belongs = (cell // self.factor)[:, None, :] == key[None, :, None]  # [B, R, S]
        belongs = ops.cast(belongs & keep[:, None, :], dtype) / ops.cast(size, dtype)[:, None, :]
        maps = []
        for each in (self.key_filter, self.value_filter):
            taps = ops.take(ops.cast(each, dtype), cell % self.factor, axis=0)  # [B, S, H]
            maps.append(belongs[:, None] * ops.transpose(taps, (0, 2, 1))[:, :, None, :])
        return *maps, key[None, :] * self.factor < ops.minimum(count, most)

    def attend(self, query, key, value, keep):
        if not self.causal:
            return super().attend(query, key, value, keep)
        length, factor = ops.shape(query)[2], self.factor
        keep = masks.or_all(keep, length)[:, None, :, None]
        key, value = (
            ops.einsum("bhrik,ih->bhrk", self._up_to_keys(x * ops.cast(keep, x.dtype)), taps)
            for x, taps in ((key, self._taps("key", key)), (value, self._taps("value", value)))
        )  # [B, H, R, K]
        made = ops.any(self._up_to_keys(keep), axis=(3, 4))  # [B or 1, 1, R]
        # The queries from one key to the next see the same keys.
        (query,), (key, value, made), distance = blocks.windows(
            [blocks.cut(query, factor)], [key, value, made], self.length - 1, 0
        )
        batch_size, _, count = ops.shape(query)[:3]
        query = ops.reshape(query, (batch_size, self.num_heads, count, -1, self.head_dim))
        seen = ops.repeat((distance > -self.length) & (distance <= 0), factor, axis=0)
        output = attend_to_seen(
            self._scores(query, key), seen & made[:, :, :, None, :], value, self.weight_dropout
        )
        return blocks.join(output, length)

    def _up_to_keys(self, x):
        """The places [B, H, N, ...] that make each key of causal attention: [B, H, R, factor, ...].

        A key ends with its last place, so there is one for the first place alone.
        """
        keys = -(-ops.shape(x)[2] // self.factor)
        padding = [[0, 0], [0, 0], [self.factor - 1, 0], [0, 0]]
        return blocks.cut(ops.pad(x, padding), self.factor)[:, :, :keys]

    def start(self, batch_size, length):
        # One more, for the one that is being made.
        count = 1 + blocks.at_most(self.length, -(-length // self.factor))
        return {
            name: slots.make(batch_size, self.num_heads, count, self.head_dim, self.compute_dtype)
            for name in ("key", "value")
        }

    def step(self, query, key, value, state, index):
        tap = (index - 1) % self.factor
        making, last = (index + self.factor - 1) // self.factor, index // self.factor
        count, new = ops.shape(state["key"])[2], {}
        for name, x in (("key", key), ("value", value)):
            so_far = ops.take(state[name], making % count, axis=2)[:, :, None]
            so_far = ops.where(tap == 0, ops.zeros_like(so_far), so_far)  # what it held before
            weight = ops.take(self._taps(name, x), tap, axis=0)[None, :, None, None]
            new[name] = slots.write(state[name], so_far + weight * x, making % count)
        number = making - (making - masks.positions(count)) % count  # of the key in each slot
        seen = (number >= 0) & (number <= last) & (number > last - self.length)
        output, _ = self._look_at(query, new | {"mask": seen[None]})
        return output, new

    def _taps(self, name, x):
        """A filter [factor, H], in the type of what it is for."""
        return ops.cast(getattr(self, f"{name}_filter"), x.dtype)
