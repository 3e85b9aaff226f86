"""Softmax attention among places that fell into the same bucket."""

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention import blocks, slots
from keras_transformer.attention.mechanism import Mechanism
from keras_transformer.attention.options import check_positive, check_share
from keras_transformer.attention.patterns import extent
from keras_transformer.attention.scores import to_unit_length
from keras_transformer.attention.softmax import (
    Partial,
    SoftmaxAttention,
    attend_partly,
    attend_to_seen,
    merge,
)

SELF = -1e4  # added to the score of a place with itself: it counts where nothing else is seen


@keras.saving.register_keras_serializable("keras_transformer")
class BlockAttention(SoftmaxAttention):
    """Softmax attention within blocks of consecutive places (Liu et al. 2018; Qiu et al. 2020).

    softmax over the s of t's block, floor(s / size) = floor(t / size), of q_t'k_s / sqrt(K).

    Within a sequence only: the blocks of two sequences have nothing to do with each other.

    Cost: O(N size) in time and memory. Choose it in some heads, beside others that carry across
    the blocks' borders: it costs less than a window that moves.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism.
        size: how many places a block has.
        score: "dot", "general", "cosine", "additive" or "mlp".
        bias: what the distance adds to the score: "alibi", "t5", "shaw", "xl", or None.
    """

    can_cross = False

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        size=64,
        score="dot",
        bias=None,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, causal, dropout, score, bias=bias, **kwargs)
        self.size = check_positive("size", size)

    @property
    def farthest(self):
        return self.size - 1

    def sees(self, query, key):
        same = query // self.size == key // self.size
        return same & (key <= query) if self.causal else same

    def attend(self, query, key, value, keep):
        length = ops.shape(query)[2]
        keep = masks.or_all(keep, length)
        content, key = self._prepare(query, key)
        size = blocks.at_most(self.size, length)
        content, query, key, value, keep = (
            blocks.cut(x, size) for x in (content, query, key, value, keep[:, None])
        )
        scores = self.score.pair(content, key)  # [B, H, blocks, size, size]
        if self.bias is not None:
            scores = scores + self.bias.scores(query, size)
        mask = keep[:, :, :, None, :]
        if self.causal:
            place = masks.positions(size)
            mask = mask & (place[None, :] <= place[:, None])
        return blocks.join(attend_to_seen(scores, mask, value, self.weight_dropout), length)


class BucketedAttention(Mechanism):
    """What attention within learned or hashed buckets shares.

    Queries are keys as well (Kitaev et al. 2020): a place has one vector, and the key is that
    vector at unit length. A place sees, of the places in its bucket, the `window` nearest: half of
    them on each side or, if causal, the last ones. (The papers cut the sorted sequence into chunks
    instead; where a chunk begins depends on later places, and so cannot be causal to the letter.) A
    place sees itself only where it sees nothing else.

    softmax over the s seen of q_t'k_s / sqrt(K), with k_s = q_s / |q_s|, and -1e4 added for s = t;
    with several rounds + log of the share of the rounds with t and s in one bucket that see s.

    Within a sequence only, because a query is its own key. Decoding keeps all places, and compares
    with each of them: O(N K) a step, as `dot`.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism.
        window: how far a place sees in its bucket: half of it to each side or, if causal, back.
        count: how many buckets there are.
        rounds: how many times buckets are given out; what is seen in any of them is seen.
    """

    can_cross = False
    projections = ("query", "value")

    def __init__(self, num_heads, head_dim, causal, dropout, window, count, rounds=1, **kwargs):
        super().__init__(num_heads, head_dim, causal, dropout, **kwargs)
        self.window = check_positive("window", window)
        self.count = check_positive("the number of buckets", count)
        self.rounds = check_positive("rounds", rounds)
        self.before, self.after = extent(window, causal)
        self.weight_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def buckets(self, x):
        """The buckets, int32 [B, H, N, rounds], of unit vectors [B, H, N, K] in float32."""
        raise NotImplementedError

    def attend(self, query, key, value, keep):
        keep = masks.or_all(keep, ops.shape(query)[2])
        keep = ops.broadcast_to(keep[:, None], ops.shape(query)[:3])
        unit = to_unit_length(query)
        buckets = ops.stop_gradient(self.buckets(unit))
        key = ops.cast(unit, query.dtype)
        return merge(
            [
                self._attend_in_round(query, key, value, keep, buckets, number)
                for number in range(self.rounds)
            ]
        )

    def _attend_in_round(self, query, key, value, keep, buckets, number):
        """Sorted by bucket, and by position within one, a bucket is a window."""
        length = ops.shape(query)[2]
        bucket = ops.where(keep, buckets[..., number], self.count)  # padding comes last
        order = ops.argsort(bucket * length + masks.positions(length), axis=-1)  # [B, H, N]
        flags = ops.cast(keep, "int32")[..., None]
        query, key, value, buckets, flags = (
            blocks.reorder(x, order) for x in (query, key, value, buckets, flags)
        )
        (query, of_query), (key, value, of_key, flags), distance = blocks.windows(
            [query * self.head_dim**-0.5, buckets], [key, value, buckets, flags],
            self.before, self.after,
        )  # fmt: skip
        scores = ops.cast(ops.einsum("...tk,...sk->...ts", query, key), "float32")
        same = of_query[..., :, None, :] == of_key[..., None, :, :]  # [..., size, num_keys, rounds]
        mask = (distance >= -self.before) & (distance <= self.after)
        mask = mask & same[..., number] & (flags[..., 0] == 1)[:, :, :, None, :]
        # A pair that shares a bucket in several rounds counts once.
        shared = ops.sum(ops.cast(same, "float32"), axis=-1)
        scores = scores - ops.log(ops.maximum(shared, 1.0)) + ops.where(distance == 0, SELF, 0.0)
        part = attend_partly(scores, mask, value, self.weight_dropout)
        back = ops.argsort(order, axis=-1)
        return Partial(*(blocks.reorder(blocks.join(each, length), back) for each in part))

    def start(self, batch_size, length):
        def make(size, dtype):
            return slots.make(batch_size, self.num_heads, length, size, dtype)

        return {
            "key": make(self.head_dim, self.compute_dtype),
            "value": make(self.head_dim, self.compute_dtype),
            "bucket": make(self.rounds, "float32"),  # small whole numbers
        }

    def step(self, query, key, value, state, index):
        unit = to_unit_length(query)
        bucket = ops.cast(self.buckets(unit), "float32")  # [B, H, 1, rounds]
        state = {
            "key": slots.write(state["key"], ops.cast(unit, query.dtype), index),
            "value": slots.write(state["value"], value, index),
            "bucket": slots.write(state["bucket"], bucket, index),
        }
        place = masks.positions(ops.shape(state["key"])[2])
        same = (state["bucket"] == bucket) & (place <= index)[:, None]  # [B, H, length, rounds]
        # The last ones of the bucket: those with few others after them.
        later = ops.flip(ops.cumsum(ops.flip(ops.cast(same, "int32"), axis=2), axis=2), axis=2)
        seen = ops.cast(same & (later <= self.window), "float32")
        often = ops.sum(seen, axis=-1) / ops.maximum(ops.sum(ops.cast(same, "float32"), -1), 1.0)
        scores = ops.einsum("bhtk,bhsk->bhts", query * self.head_dim**-0.5, state["key"])
        # In this order: a product and a sum [B, 1, 1, length] are fused by TensorFlow 2.21 with
        # oneDNN, which then returns wrong numbers where B is not known when the graph is made.
        scores = ops.cast(scores, "float32") + ops.where(place == index, SELF, 0.0)
        scores = scores + ops.log(ops.maximum(often, 1e-9))[:, :, None]
        mask = (often > 0)[:, :, None]  # [B, H, 1, length]
        return merge([attend_partly(scores, mask, state["value"], self.weight_dropout)]), state


@keras.saving.register_keras_serializable("keras_transformer")
class LSHAttention(BucketedAttention):
    """Attention within buckets of a locality-sensitive hash (Kitaev et al. 2020, "Reformer").

    h(x) = argmax [x R; -x R], with a random rotation R: vectors at a small angle fall into the same
    bucket, and what the softmax would give most weight to is found without looking at all. The
    rotations are drawn once and saved with the model.

    Of places with one other at an angle of about 10 degrees, anywhere in a sequence of 512, four
    rounds of 16 buckets find more than 95 % (tests/attention/test_approximations.py). A bucket of
    more places than the window is not seen whole: take N / window buckets, or more.

    Cost: O(N log N) for sorting, O(N rounds (rounds window + buckets)) else. Choose it for very
    long sequences in which a place has few others that matter, anywhere.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism.
        window: how far a place sees in its bucket: half of it to each side or, if causal, back.
        buckets: how many buckets there are, an even number.
        rounds: how many hashes there are; with more, less is missed.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        window=64,
        buckets=16,
        rounds=2,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, causal, dropout, window, buckets, rounds, **kwargs)
        if buckets % 2:
            raise ValueError(f"buckets={buckets!r} has to be a positive even number.")

    def build(self, query_shape, key_shape, value_shape):
        self.rotations = self.add_weight(
            shape=(self.num_heads, self.head_dim, self.rounds * self.count // 2),
            initializer=keras.initializers.RandomNormal(stddev=1.0),
            trainable=False,
            autocast=False,  # or a rounded hash would be another hash
            name="rotations",
        )

    def buckets(self, x):
        turned = ops.einsum("bhnk,hkr->bhnr", x, ops.cast(self.rotations, x.dtype))
        turned = ops.reshape(turned, (*ops.shape(x)[:3], self.rounds, -1))
        return ops.cast(ops.argmax(ops.concatenate([turned, -turned], -1), axis=-1), "int32")


@keras.saving.register_keras_serializable("keras_transformer")
class KMeansAttention(BucketedAttention):
    """Attention within clusters that follow the data (Roy et al. 2021, "Routing Transformer").

    Each head has centroids on the unit sphere, and a place belongs to the nearest: argmax_c x'm_c.
    While training, a centroid moves towards the mean of its places, as a moving average. (The
    paper gives each centroid its nearest places, so that clusters are of one size.)

    Cost: O(N log N) for sorting, O(N (window + clusters)) else. Choose it like `lsh`, where
    training is long enough for the clusters to be found.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism.
        window: how far a place sees in its cluster: half of it to each side or, if causal, back.
        clusters: how many clusters there are.
        momentum: the share of a centroid that a batch leaves as it is, from 0 to 1.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        window=64,
        clusters=16,
        momentum=0.999,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, causal, dropout, window, clusters, **kwargs)
        self.momentum = check_share("momentum", momentum)

    def build(self, query_shape, key_shape, value_shape):
        normal = keras.initializers.RandomNormal(stddev=1.0)
        self.centroids = self.add_weight(
            shape=(self.num_heads, self.count, self.head_dim),
            initializer=lambda shape, dtype=None: to_unit_length(normal(shape, dtype)),
            trainable=False,
            autocast=False,  # or small moves would be rounded away
            name="centroids",
        )

    def buckets(self, x):
        near = ops.einsum("bhnk,hck->bhnc", x, ops.cast(self.centroids, x.dtype))
        return ops.cast(ops.argmax(near, axis=-1), "int32")[..., None]

    def adapt(self, query, key, keep):
        x = ops.stop_gradient(to_unit_length(query))
        member = ops.one_hot(self.buckets(x)[..., 0], self.count, dtype="float32")
        if keep is not None:
            member = member * ops.cast(keep, "float32")[:, None, :, None]
        sums = ops.einsum("bhnc,bhnk->hck", member, x)
        some = ops.sum(member, axis=(0, 2))[..., None] > 0  # [H, clusters, 1]
        before = ops.convert_to_tensor(self.centroids)
        moved = self.momentum * before + (1 - self.momentum) * to_unit_length(sums)
        self.centroids.assign(ops.where(some, to_unit_length(moved), before))
