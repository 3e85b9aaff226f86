"""Softmax attention to a block that a learned sorting puts beside one's own."""

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention import blocks
from keras_transformer.attention.options import check_positive
from keras_transformer.attention.scores import to_unit_length
from keras_transformer.attention.softmax import SoftmaxAttention, attend_partly, merge

ROUNDS = 20  # of normalising rows and columns; the paper uses 5 to 20


def sinkhorn(scores, valid, rounds=ROUNDS):
    """A matrix of non-negative numbers whose rows and columns all sum to 1 (Sinkhorn 1964).

    Args:
        scores: float32 [..., n, n], logarithms of what is normalised.
        valid: bool [..., n]; the rows and columns of the others are 0.
        rounds: how often rows and columns are normalised in turn.
    """
    both = valid[..., :, None] & valid[..., None, :]
    scores = masks.hide(scores, both)
    for _ in range(rounds):
        for axis in (-1, -2):
            # Where nothing is valid all are alike, and stay far below the others.
            scores = scores - ops.logsumexp(scores, axis=axis, keepdims=True)
            scores = masks.hide(scores, both)
    return ops.where(both, ops.exp(scores), 0.0)


@keras.saving.register_keras_serializable("keras_transformer")
class SinkhornAttention(SoftmaxAttention):
    """Attention to the own block and to another one, found by sorting (Tay et al. 2020).

    softmax over the s of block i of q_t'k_s / sqrt(K) and those of block j(i) of the same + log p,
    for t in block i, which is matched with block j(i) with the probability p.

    Blocks are described by their mean query and key, at unit length. Their scores sqrt(K) q'W k,
    with Gumbel noise while training, divided by a temperature and normalised by `sinkhorn`, are a
    soft permutation of the blocks. Each block sees itself and the block it is matched with; by
    log p the gradient reaches what sorts. (The paper takes the mean of all blocks' keys and values
    by these probabilities, which costs N^2 / size; as they get hard, the two are the same. It reads
    the scores off the blocks by a linear layer of as many outputs as there are blocks; comparing
    them works for any number. As there, a block that is matched with itself counts twice.)

    It has no causal form. If each block is to be matched once, with itself or one before it, the
    only sorting leaves all in their places; without itself, each is left the one before it. That
    is what the rounds of the paper's causal form come near to, and `local` sees as much.

    Cost: O(N size + (N / size)^2) in time and memory, of which the second is small: numbers instead
    of vectors. Choose it where far blocks belong together, as questions and answers do.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism.
        size: how many places a block has.
        temperature: below 1, the sorting is harder; 0.75 is the paper's.
    """

    can_be_causal = False  # see above
    can_cross = False
    compares_by_dot_product = False  # the means of blocks are compared through a matrix

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        size=64,
        temperature=0.75,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, causal, dropout, **kwargs)
        self.size = check_positive("size", size)
        self.temperature = check_positive("temperature", temperature, (int, float))
        self.noise = GumbelNoise(dtype="float32")

    def build(self, query_shape, key_shape, value_shape):
        super().build(query_shape, key_shape, value_shape)
        self.matrix = self.add_weight(
            shape=(self.num_heads, self.head_dim, self.head_dim),
            initializer=keras.initializers.RandomNormal(stddev=self.head_dim**-0.5),
            name="matrix",
        )

    def sort(self, query, key, keep):
        """How well each block fits each other one.

        Args:
            query, key: [B, H, blocks, size, K].
            keep: bool [B, H, blocks, size].

        Returns:
            float32 [B, H, blocks, blocks]. Columns sum to 1, and rows to 1 within 0.001 for scores
            of unit variance, within 0.1 with the noise.
        """
        weight = ops.cast(keep, "float32")[..., None]
        count = ops.maximum(ops.sum(weight, axis=3), 1.0)
        query, key = (
            ops.sum(weight * ops.cast(x, "float32"), axis=3) / count for x in (query, key)
        )  # [B, H, blocks, K]
        # How long a mean is depends on how alike the tokens of a block are. Of means at unit length
        # a random W makes scores of the variance 1 / K, and so these of 1: far larger ones would
        # take hundreds of rounds to normalise.
        query, key = to_unit_length(query), to_unit_length(key)
        matrix = ops.cast(self.matrix, "float32")
        scores = ops.einsum("bhik,hkl,bhjl->bhij", query, matrix, key) * self.head_dim**0.5
        return sinkhorn(self.noise(scores) / self.temperature, ops.any(keep, axis=3))

    def attend(self, query, key, value, keep):
        batch_size, _, length = ops.shape(query)[:3]
        keep = masks.or_all(keep, length)[:, None]
        keep = ops.broadcast_to(keep, (batch_size, self.num_heads, length))
        size = blocks.at_most(self.size, length)
        query, key, value, keep = (blocks.cut(x, size) for x in (query, key, value, keep))
        permutation = self.sort(query, key, keep)
        match = ops.argmax(permutation, axis=-1)[..., None]  # [B, H, blocks, 1]
        share = ops.take_along_axis(permutation, match, axis=-1)
        log_share = ops.log(ops.maximum(share, 1e-9))[..., None]  # [B, H, blocks, 1, 1]
        flags = ops.cast(keep, "int32")[..., None]
        other_key, other_value, other_flags = (
            blocks.reorder(x, match[..., 0]) for x in (key, value, flags)
        )
        parts = [
            self._attend_to(query, key, value, keep, 0.0),
            self._attend_to(query, other_key, other_value, other_flags[..., 0] == 1, log_share),
        ]
        return blocks.join(merge(parts), length)

    def _attend_to(self, query, key, value, keep, log_share):
        scores = ops.cast(self.score.pair(*self._prepare(query, key)), "float32") + log_share
        return attend_partly(scores, keep[:, :, :, None, :], value, self.weight_dropout)


class GumbelNoise(keras.layers.Layer):
    """Adds noise -log(-log u), of which the largest of some scores is a draw from their softmax."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator()
        self.built = True

    def call(self, x, training=False):
        if not training:
            return x
        u = keras.random.uniform(ops.shape(x), 1e-6, 1.0 - 1e-6, seed=self.seed_generator)
        return x - ops.log(-ops.log(u))
