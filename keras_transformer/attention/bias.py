"""Relative positions inside attention: what the distance of a key adds to its score."""

import math

import keras
from keras import ops

from keras_transformer.attention import blocks
from keras_transformer.attention.scores import per_head
from keras_transformer.layers.positions import angles


class RelativeBias(keras.layers.Layer):
    """A score that depends on how far the key stands behind the query, and maybe on the query.

    Args:
        num_heads: H.
        head_dim: K.
        causal: whether keys only ever stand before the query.
        scale: that of the score which this is added to.
    """

    reads_query = False  # beside the distance

    def __init__(self, num_heads, head_dim, causal=False, scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.causal = causal

    def of_distances(self, query, distances):
        """What each distance adds.

        Args:
            query: [B, H, ..., T, K].
            distances: int32 [L], position of the key minus position of the query.

        Returns:
            [B, H, ..., T, L], or sizes of 1 where it is always the same.
        """
        raise NotImplementedError

    def of_pairs(self, query, distances):
        """What each pair of a query and a key adds: [B or 1, H, T, S] for distances [T, S]."""
        x = self.of_distances(query, ops.reshape(distances, (-1,)))  # the same for all queries
        return ops.reshape(x, (1, self.num_heads, *ops.shape(distances)))

    def of_content(self, query):
        """The query that is compared with the keys' contents."""
        return query

    def scores(self, query, num_keys, first=0, stride=1):
        """What is added to the scores of consecutive keys.

        Args:
            query: [B, H, ..., T, K], at consecutive places.
            num_keys: S.
            first: where the first key stands, if the first query stands at 0.
            stride: the distance of two neighbours in the sequence.

        Returns:
            [B, H, ..., T, S], or sizes of 1 where it is always the same.
        """
        num_queries = ops.shape(query)[-2]
        # One distance more than there are, for the reshaping below.
        distances = ops.arange(num_queries + num_keys, dtype="int32") - (num_queries - 1) + first
        x = self.of_distances(query, stride * distances)  # [..., T or 1, T + S]
        lead = [ops.shape(x)[axis] for axis in range(len(x.shape) - 2)]
        width = num_queries + num_keys
        x = ops.broadcast_to(x, (*lead, num_queries, width))
        # Row t needs the columns from T - 1 - t on: in rows one shorter, each begins there.
        x = ops.reshape(x, (*lead, num_queries * width))
        x = blocks.take(x, num_queries - 1, num_queries * (width - 1), axis=-1)
        return blocks.take(ops.reshape(x, (*lead, num_queries, width - 1)), 0, num_keys, axis=-1)


@keras.saving.register_keras_serializable("keras_transformer")
class ALiBi(RelativeBias):
    """-m |s - t|, with a fixed slope m of each head (Press et al. 2022): no weights.

    The slopes are 2^(-8 h / H) for the heads h = 1 ... H of a group, also where H is no power of
    two. A group of one head has the last of them, 2^-8.

    Cost: one addition a score. Choose it for sequences longer than those of the training.
    """

    def of_distances(self, query, distances):
        slopes = 2.0 ** (-8.0 * ops.arange(1, self.num_heads + 1, dtype="float32") / self.num_heads)
        far = ops.cast(ops.abs(distances), "float32")
        x = -slopes[:, None] * far[None, :]  # [H, L]
        return ops.cast(_between(x, query), query.dtype)


@keras.saving.register_keras_serializable("keras_transformer")
class T5Bias(RelativeBias):
    """b_{bucket(s - t)}, a learned number for each head and bucket (Raffel et al. 2020, "T5").

    Half of the buckets are for one distance each, the others grow logarithmically up to 128, and
    beyond that all is one bucket. Keys on the right have buckets of their own.

    Cost: an addition a score and, in training, a sum of its gradients for each distance. Choose it
    where near places need telling apart and far ones do not.
    """

    NUM_BUCKETS, MAX_DISTANCE = 32, 128

    def build(self, input_shape=None):
        self.table = self.add_weight(
            shape=(self.NUM_BUCKETS, self.num_heads),
            initializer=keras.initializers.RandomNormal(stddev=self.head_dim**-0.5),
            name="table",
        )

    def buckets(self, distances):
        """The bucket of each distance, int32."""
        per_side = self.NUM_BUCKETS if self.causal else self.NUM_BUCKETS // 2
        exact = per_side // 2
        far = ops.abs(distances)
        wide = ops.log(ops.cast(ops.maximum(far, 1), "float32") / exact)
        wide = wide / math.log(self.MAX_DISTANCE / exact) * (per_side - exact)
        wide = exact + ops.cast(wide, "int32")
        buckets = ops.where(far < exact, far, ops.minimum(wide, per_side - 1))
        if self.causal:
            return buckets
        return buckets + per_side * ops.cast(distances > 0, "int32")

    def of_distances(self, query, distances):
        x = ops.transpose(ops.take(self.table, self.buckets(distances), axis=0))  # [H, L]
        return ops.cast(_between(x, query), query.dtype)


@keras.saving.register_keras_serializable("keras_transformer")
class ShawBias(RelativeBias):
    """q'a, scaled like q'k, with a learned vector a of each distance up to 16 (Shaw et al. 2018).

    The vectors are shared by the heads, as in the paper. Its second set of vectors, which is added
    to the values, is left out: by the paper's table 3 it gives nothing beside the first.

    Cost: a product of every query with a vector for each distance, twice as many as keys. Choose it
    where what a distance means depends on who looks.
    """

    reads_query = True
    LONGEST = 16

    def build(self, input_shape=None):
        self.table = self.add_weight(
            shape=(2 * self.LONGEST + 1, self.head_dim), initializer="glorot_uniform", name="table"
        )

    def vectors(self, distances, dtype):
        """a [..., K] of each distance."""
        near = ops.clip(distances, -self.LONGEST, self.LONGEST) + self.LONGEST
        return ops.cast(ops.take(self.table, near, axis=0), dtype)

    def of_distances(self, query, distances):
        rows = ops.reshape(query * self.scale, (-1, self.head_dim))
        rows = ops.matmul(rows, ops.transpose(self.vectors(distances, query.dtype)))
        return ops.reshape(rows, (*ops.shape(query)[:-1], ops.shape(distances)[0]))

    def of_pairs(self, query, distances):
        vectors = self.vectors(distances, query.dtype)  # [T, S, K]
        return ops.einsum("bhtk,tsk->bhts", query * self.scale, vectors)


@keras.saving.register_keras_serializable("keras_transformer")
class TransformerXLBias(RelativeBias):
    """(q + v)'W r, scaled like q'k, with sinusoids r of the distance (Dai et al. 2019).

    u and v are learned and the same at every place; u is added to the query that is compared with
    the keys. W reads sinusoids of the size H K.

    Cost: a second product, twice as large as that of queries and keys. Choose it for long sequences
    whose far distances matter, which `shaw` and `t5` do not tell apart.
    """

    reads_query = True

    def build(self, input_shape=None):
        size = self.num_heads * self.head_dim
        if size % 2:
            raise ValueError(f"Sinusoids need an even number of components; {size} came.")
        self.matrix = self.add_weight(
            shape=(size, size), initializer="glorot_uniform", name="matrix"
        )
        self.u, self.v = (
            self.add_weight(
                shape=(self.num_heads, 1, self.head_dim), initializer="glorot_uniform", name=name
            )
            for name in ("u", "v")
        )

    def of_content(self, query):
        return query + self._spread(self.u, query)

    def keys(self, distances, dtype):
        """W r [..., H, K] of each distance."""
        flat = ops.reshape(distances, (-1,))
        angle = angles(flat, self.num_heads * self.head_dim)
        sinusoids = ops.concatenate([ops.sin(angle), ops.cos(angle)], axis=-1)
        keys = ops.matmul(sinusoids, ops.cast(self.matrix, "float32"))
        shape = (*ops.shape(distances), self.num_heads, self.head_dim)
        return ops.cast(ops.reshape(keys, shape), dtype)

    def of_distances(self, query, distances):
        keys = ops.transpose(self.keys(distances, query.dtype), (1, 2, 0))  # [H, K, L]
        return per_head((query + self._spread(self.v, query)) * self.scale, keys)

    def of_pairs(self, query, distances):
        query = (query + self._spread(self.v, query)) * self.scale
        return ops.einsum("bhtk,tshk->bhts", query, self.keys(distances, query.dtype))

    def _spread(self, weight, query):
        between = [1] * (len(query.shape) - 4)
        shape = (self.num_heads, *between, 1, self.head_dim)
        return ops.cast(ops.reshape(weight, shape), query.dtype)


BIASES = {"alibi": ALiBi, "t5": T5Bias, "shaw": ShawBias, "xl": TransformerXLBias}


def _between(x, query):
    """[H, L] -> [1, H, ..., 1, L], with as many axes as the query has."""
    between = [1] * (len(query.shape) - 3)
    return ops.reshape(x, (1, x.shape[0], *between, -1))
