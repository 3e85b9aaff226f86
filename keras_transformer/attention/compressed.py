"""Softmax attention to fewer keys than there are places: Linformer, strided convolution."""

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention import blocks
from keras_transformer.attention.mechanism import Mechanism
from keras_transformer.attention.options import check_positive
from keras_transformer.attention.softmax import softmax


class CompressedAttention(Mechanism):
    """Softmax attention to R keys and values, each a sum of those of all places.

    softmax(Q (E K)' / sqrt(K)) F V, with E and F of [R, S]. A key is made of the whole sequence, so
    this cannot be causal.
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
        """The output [B, H, T, K], and the weights [B, H, T, R] of what is left of the keys."""
        scores = ops.einsum("bhtk,bhrk->bhtr", query * self.head_dim**-0.5, memory["key"])
        weights = softmax(scores, memory["mask"][:, None, None, :])
        return ops.matmul(self.weight_dropout(weights), memory["value"]), weights


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
    stride is 3 whatever the length, and its cost N^2 / 3; with it, the paper's can be causal.)
    Padding is taken to be at the end.

    Cost: O(N length) in time and memory. Choose it where a summary of what is far will do.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism.
        length: how many keys and values are left at most.
        factor: how many places, or stretches, make one of them.
    """

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
