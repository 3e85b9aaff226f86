"""Softmax attention to some places, chosen by position: local, strided."""

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention import blocks
from keras_transformer.attention.options import check_positive
from keras_transformer.attention.softmax import (
    Partial,
    SoftmaxAttention,
    attend_partly,
    attend_to_seen,
    merge,
)


class PatternAttention(SoftmaxAttention):
    """Softmax attention to the keys at certain distances, and to and from the first tokens.

    The scores that a pattern leaves out are not computed: each part of a pattern, such as the
    window of `local`, is attended to on its own, and the parts share a softmax in the end.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism.
        global_tokens: so many first places look at all places, and all places look at them.
        score, scale, bias: as of `SoftmaxAttention`.
    """

    can_cross = False

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        global_tokens=0,
        score="dot",
        scale=None,
        bias=None,
        **kwargs,
    ):
        super().__init__(num_heads, head_dim, causal, dropout, score, scale, bias, **kwargs)
        self.global_tokens = check_positive("global_tokens", global_tokens) if global_tokens else 0

    def near(self, distance):
        """Whether a key at this distance (position of the key minus the query's) is seen."""
        raise NotImplementedError

    def attend_near(self, query, key, value, keep):
        """The parts of attention by `near`: a list of `Partial`s."""
        raise NotImplementedError

    def sees(self, query, key):
        seen = self.near(key - query)
        if self.global_tokens:
            seen = seen | (key < self.global_tokens) | (query < self.global_tokens)
        return seen & (key <= query) if self.causal else seen

    def attend(self, query, key, value, keep):
        keep = masks.or_all(keep, ops.shape(key)[2])
        parts = self.attend_near(query, key, value, keep)
        if self.global_tokens:
            parts.append(self._attend_to_first(query, key, value, keep))
        output = merge(parts)
        if self.global_tokens and not self.causal:
            first, length = self._attend_from_first(query, key, value, keep), ops.shape(output)[2]
            count = self._num_first(length)
            output = ops.concatenate([first, blocks.take(output, count, length - count)], axis=2)
        return output

    def _attend_in_window(self, query, key, value, keep, before, after, stride=1, hidden=None):
        """The part of attention to the places from `before` back to `after` ahead.

        Args:
            query, key, value: [B, H, N, K].
            keep: bool [B or 1, N].
            before, after: how far the window reaches, in places.
            stride: how far two places are apart.
            hidden: a function that says which distances in the window are not seen after all.
        """
        seen, length = self._window(query, key, value, keep, before, after, stride, hidden)
        part = attend_partly(*seen, self.weight_dropout)
        return Partial(*(blocks.join(each, length) for each in part))

    def _window(self, query, key, value, keep, before, after, stride=1, hidden=None):
        """Scores, mask and values of each block of queries, and the length of the sequence."""
        length = ops.shape(query)[2]
        content, key = self._prepare(query, key)
        (content, query), (key, value, keep), distance = blocks.windows(
            [content, query], [key, value, keep[:, None]], before, after
        )
        scores = self.score.pair(content, key)  # [B, H, blocks, size, num_keys]
        if self.bias is not None:
            size, num_keys = ops.shape(distance)
            scores = scores + self.bias.scores(query, num_keys, -size, stride)
        mask = (distance >= -before) & (distance <= after)
        if hidden is not None:
            mask = mask & ~hidden(stride * distance)
        return (scores, mask & keep[:, :, :, None, :], value), length

    def _attend_to_first(self, query, key, value, keep):
        """The part of attention to the global tokens that are not near."""
        count = self._num_first(ops.shape(key)[2])
        key, value, keep = (blocks.take(x, 0, count) for x in (key, value, keep[:, None, :, None]))
        num_queries, num_keys = ops.shape(query)[2], ops.shape(key)[2]
        distance = masks.positions(num_keys)[None, :] - masks.positions(num_queries)[:, None]
        scores = self._score_pairs(query, key, distance)  # [B, H, N, global_tokens]
        mask = ~self.near(distance)
        if self.causal:
            mask = mask & (distance <= 0)
        mask = mask[None, None] & ops.transpose(keep, (0, 1, 3, 2))  # [B or 1, 1, N, num_keys]
        return attend_partly(scores, mask, value, self.weight_dropout)

    def _attend_from_first(self, query, key, value, keep):
        """The output [B, H, global_tokens, K] of the global tokens, which see everything."""
        query = blocks.take(query, 0, self._num_first(ops.shape(query)[2]))
        num_queries, num_keys = ops.shape(query)[2], ops.shape(key)[2]
        distance = masks.positions(num_keys)[None, :] - masks.positions(num_queries)[:, None]
        scores = self._score_pairs(query, key, distance)
        return attend_to_seen(scores, keep[:, None, None, :], value, self.weight_dropout)

    def _num_first(self, length):
        """How many of the global tokens there are."""
        return blocks.at_most(self.global_tokens, length)

    def _score_pairs(self, query, key, distance):
        """The scores [B, H, T, S] where T or S is small."""
        scores = self.score.pair(*self._prepare(query, key))
        return scores if self.bias is None else scores + self.bias.of_pairs(query, distance)


@keras.saving.register_keras_serializable("keras_transformer")
class LocalAttention(PatternAttention):
    """Softmax attention to the nearest places (truncated, or sliding window, attention).

    softmax over the s with |s - t| <= window / 2 of q_t'k_s / sqrt(K); if causal, over the last
    `window` places, t among them. With `global_tokens` it is Longformer's pattern (Beltagy et al.
    2020; it has other projections for global places) and that of ETC (Ainslie et al. 2020), with
    the special tokens taken from the sequence.

    Cost: O(N window) in time and memory; decoding keeps `window` places, and the global ones.
    Choose it for long text, where most of what matters is near, with some heads or layers that see
    farther.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism.
        window: how far it reaches: half of it to each side of a place or, if causal, a place and
            those before it, `window` in all.
        global_tokens: so many first places look at all places, and all places look at them.
        score: "dot", "general", "cosine", "additive" or "mlp".
        bias: what the distance adds to the score: "alibi", "t5", "shaw", "xl", or None.

    Example:

    >>> import keras
    >>> from keras_transformer import SelfAttention
    >>> layer = SelfAttention(d_model=64, num_heads=4, heads="2 * local(window=16) + 2 * dot")
    >>> tuple(layer(keras.random.normal((1, 100, 64))).shape)
    (1, 100, 64)
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        window=64,
        global_tokens=0,
        score="dot",
        bias=None,
        **kwargs,
    ):
        super().__init__(
            num_heads, head_dim, causal, dropout, global_tokens, score, bias=bias, **kwargs
        )
        self.window = check_positive("window", window)
        self.before, self.after = extent(window, causal)

    @property
    def farthest(self):
        return self.before

    def near(self, distance):
        return (distance >= -self.before) & (distance <= self.after)

    def attend(self, query, key, value, keep):
        if self.global_tokens:
            return super().attend(query, key, value, keep)
        keep = masks.or_all(keep, ops.shape(key)[2])
        seen, length = self._window(query, key, value, keep, self.before, self.after)
        return blocks.join(attend_to_seen(*seen, self.weight_dropout), length)

    def attend_near(self, query, key, value, keep):
        return [self._attend_in_window(query, key, value, keep, self.before, self.after)]


@keras.saving.register_keras_serializable("keras_transformer")
class StridedAttention(PatternAttention):
    """Softmax attention to every `stride`-th place, the query's own among them (Child et al. 2019).

    softmax over the s with (s - t) mod stride = 0: a place sees `window` of them, half on each
    side, or if causal the last ones: the reach is window * stride. (The paper's comb goes to the
    ends of the sequence, N / stride places, and its stride grows with sqrt(N); a window of that
    size gives the same.) With `local` it also sees its nearest places, as the paper's strided
    pattern does.

    Cost: O(N (window + local)) in time and memory; decoding keeps the last window * stride places,
    and goes over all of them at each step. Choose it beside `local` heads for what repeats
    with a period, such as the rows of an image, or for a wide view at little cost.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism.
        stride: the distance between two places that are seen.
        window: how far it reaches, as many of them: half to each side or, if causal, back.
        local: the nearest places are seen as well, in a window of this size; 0 for none.
        global_tokens: so many first places look at all places, and all places look at them.
        score: "dot", "general", "cosine", "additive" or "mlp".
        bias: what the distance adds to the score: "alibi", "t5", "shaw", "xl", or None.
    """

    def __init__(
        self,
        num_heads,
        head_dim,
        causal=False,
        dropout=0.0,
        stride=8,
        window=64,
        local=0,
        global_tokens=0,
        score="dot",
        bias=None,
        **kwargs,
    ):
        super().__init__(
            num_heads, head_dim, causal, dropout, global_tokens, score, bias=bias, **kwargs
        )
        self.stride = check_positive("stride", stride)
        self.window = check_positive("window", window)
        self.local = check_positive("local", local) if local else 0
        self.before, self.after = extent(window, causal)
        self.local_before, self.local_after = extent(local, causal) if local else (-1, -1)

    @property
    def farthest(self):
        return max(self.before * self.stride, self.local_before)

    def near(self, distance):
        comb = (distance >= -self.before * self.stride) & (distance <= self.after * self.stride)
        return (comb & (distance % self.stride == 0)) | self._is_local(distance)

    def _is_local(self, distance):
        return (distance >= -self.local_before) & (distance <= self.local_after)

    def attend_near(self, query, key, value, keep):
        parts = [self._attend_to_comb(query, key, value, keep)]
        if self.local:
            extents = (self.local_before, self.local_after)
            parts.append(self._attend_in_window(query, key, value, keep, *extents))
        return parts

    def _attend_to_comb(self, query, key, value, keep):
        """A window among the places of the same remainder, which are so many short sequences."""
        batch_size, length = ops.shape(query)[0], ops.shape(query)[2]
        keep = ops.broadcast_to(keep, (batch_size, length))[:, None]
        query, key, value, keep = (self._comb(x) for x in (query, key, value, keep))
        part = self._attend_in_window(
            query, key, value, keep[:, 0], self.before, self.after, self.stride, self._is_local
        )
        return Partial(*(self._uncomb(each, batch_size, length) for each in part))

    def _comb(self, x):
        """[B, H, N, ...] -> [B stride, H, N / stride, ...]."""
        x = blocks.cut(x, self.stride)  # [B, H, N / stride, stride, ...]
        rest = range(4, len(x.shape))
        x = ops.transpose(x, (0, 3, 1, 2, *rest))
        return ops.reshape(x, (-1, *(ops.shape(x)[axis] for axis in range(2, len(x.shape)))))

    def _uncomb(self, x, batch_size, length):
        x = ops.reshape(x, (batch_size, self.stride, *ops.shape(x)[1:]))
        return blocks.join(ops.transpose(x, (0, 2, 3, 1, 4)), length)


def extent(window, causal):
    """How far a window reaches back and ahead of a place."""
    return (window - 1, 0) if causal else (window // 2, window // 2)
