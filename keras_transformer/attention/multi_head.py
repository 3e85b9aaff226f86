"""Multi-head attention: project, give each group of heads its mechanism, combine."""

import inspect
from itertools import accumulate

import keras
from keras import ops, tree

from keras_transformer.attention import MECHANISMS
from keras_transformer.attention.spec import parse_heads
from keras_transformer.layers.linear import Linear
from keras_transformer.layers.positions import RotaryPositions

ENCODER, DECODER, CROSS = "used in an encoder", "causal, as in a decoder", "cross-attention"


class MultiHeadAttention(keras.layers.Layer):
    """What self-attention and cross-attention share: Concat(head_1, ..., head_h) W^O.

    head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V) (Vaswani et al. 2017, section 3.2.2), without
    biases, as in the paper's formula and its code.
    """

    cross = False

    def __init__(
        self,
        d_model,
        num_heads,
        head_dim=None,
        heads="dot",
        causal=False,
        dropout=0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if head_dim is None:
            if d_model % num_heads:
                raise ValueError(
                    f"d_model={d_model} cannot be divided among num_heads={num_heads}. "
                    "Choose a divisor, or give head_dim."
                )
            head_dim = d_model // num_heads
        self.d_model = d_model
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.causal = causal
        groups = parse_heads(heads, num_heads)
        self.mechanisms = [self._make(group, dropout) for group in groups]
        self.output_projection = None
        if any(mechanism.projections for mechanism in self.mechanisms):
            self.output_projection = self._linear(d_model, "output_projection")

    def _make(self, group, dropout):
        known = options_of(MECHANISMS[group.name])
        for option in group.options:
            if option not in known:
                raise ValueError(
                    f"The mechanism {group.name} has no option {option!r}. "
                    f"It has {', '.join(known) or 'none'}."
                )
        mechanism = MECHANISMS[group.name](
            num_heads=group.count,
            head_dim=self.head_dim,
            causal=self.causal,
            dropout=dropout,
            dtype=self.dtype_policy,
            **group.options,
        )
        use = CROSS if self.cross else DECODER if self.causal else ENCODER
        uses = {
            ENCODER: mechanism.can_encode,
            DECODER: mechanism.can_be_causal,
            CROSS: mechanism.can_cross,
        }
        if not uses[use]:
            options = ", ".join(f"{name}={value!r}" for name, value in group.options.items())
            raise ValueError(
                f"The mechanism {group.name}{options and f'({options})'} cannot be {use}. "
                f"It may be {' or '.join(use for use in uses if uses[use])}."
            )
        return mechanism

    def _linear(self, units, name):
        return Linear(units, use_bias=False, name=name, dtype=self.dtype_policy)

    def _build_heads(self, num_queries, num_keys):
        for mechanism in self.mechanisms:
            query_shape = (None, mechanism.num_heads, num_queries, self.head_dim)
            key_shape = (None, mechanism.num_heads, num_keys, self.head_dim)
            mechanism.build(query_shape, key_shape, key_shape)
        if self.output_projection is not None:
            self.output_projection.build((None, None, self.num_heads * self.head_dim))

    def _split_heads(self, x, parts):
        """[B, T, parts H K] -> `parts` tensors [B, H, T, K]."""
        heads = x.shape[-1] // (parts * self.head_dim)
        if x.shape[1] == 1:  # a single place needs no transposition
            x = ops.reshape(x, (-1, parts, heads, 1, self.head_dim))
            return ops.unstack(x, parts, axis=1)
        x = ops.reshape(x, (*ops.shape(x)[:2], parts, heads, self.head_dim))
        x = ops.transpose(x, (2, 0, 3, 1, 4))  # [parts, B, H, T, K]
        return ops.unstack(x, parts)  # not x[0], x[1], ...: the gradient of a slice is slow

    def _combine_heads(self, outputs):
        """The outputs [B, H_group, T, K] of all groups -> [B, T, D]."""
        x = ops.transpose(_join(outputs), (0, 2, 1, 3))  # [B, T, H, K]
        return self._project(ops.reshape(x, (*ops.shape(x)[:2], self.num_heads * self.head_dim)))

    def _project(self, x):
        return x if self.output_projection is None else self.output_projection(x)

    def _of_groups(self, x):
        """The heads of each group, of heads [B, H, ...]."""
        return _cut(x, [mechanism.num_heads for mechanism in self.mechanisms])

    def _attend(self, heads, keep, return_attention_scores):
        """The layer's output, from the query, key and value of each group."""
        results = [
            mechanism(*of_group, keep=keep, return_attention_scores=return_attention_scores)
            for mechanism, of_group in zip(self.mechanisms, heads, strict=True)
        ]
        if not return_attention_scores:
            return self._combine_heads(results)
        outputs, scores = zip(*results, strict=True)
        return self._combine_heads(outputs), _join(scores)


def options_of(mechanism):
    """The names of the options of a mechanism's class, which a head spec may give."""
    common = ("self", "num_heads", "head_dim", "causal", "dropout", "kwargs")
    return [name for name in inspect.signature(mechanism.__init__).parameters if name not in common]


def _join(groups):
    """The heads of all groups, [B, H_group, ...] each -> [B, H, ...]."""
    return groups[0] if len(groups) == 1 else ops.concatenate(groups, axis=1)


def _cut(heads, counts):
    """The other way round: so many heads each."""
    return [heads] if len(counts) == 1 else ops.split(heads, list(accumulate(counts[:-1])), axis=1)


@keras.saving.register_keras_serializable("keras_transformer")
class SelfAttention(MultiHeadAttention):
    """Multi-head self-attention: every place looks at the places of its own sequence.

    Vaswani et al. 2017, section 3.2. The three projections are one matrix product; Glorot's bound
    on the joined matrix is then 1/sqrt(2) of the bound on each, which trains better.

    Args:
        d_model: D, the size of inputs and outputs.
        num_heads: H.
        head_dim: K, the size of each head; d_model / num_heads by default.
        heads: what each head does, such as "dot" for all of them.
        causal: whether a place may look at itself and earlier places only.
        dropout: rate of dropout on the attention weights.
        rotary: whether queries and keys are rotated by their positions. Heads that do not compare
            them by their dot product, of which a distance would be left, are refused.

    Call arguments:
        x: [B, T, D].
        keep: bool [B, T], True where there is a token.
        return_attention_scores: whether to return the weights [B, H, T, T] as well.

    Returns:
        [B, T, D], or that and the attention scores.

    Example:

    >>> import keras
    >>> from keras_transformer import SelfAttention
    >>> sentence = keras.Input((None, 64))
    >>> model = keras.Model(sentence, SelfAttention(d_model=64, num_heads=4)(sentence))
    >>> model(keras.random.normal((2, 7, 64))).shape == (2, 7, 64)
    True
    """

    def __init__(
        self,
        d_model,
        num_heads,
        head_dim=None,
        heads="dot",
        causal=False,
        dropout=0.0,
        rotary=False,
        **kwargs,
    ):
        super().__init__(d_model, num_heads, head_dim, heads, causal, dropout, **kwargs)
        self.rotary = RotaryPositions(dtype=self.dtype_policy) if rotary else None
        if rotary:
            self._check_rotary(parse_heads(heads, num_heads))
        # The heads of all queries, then of all keys and of all values, as far as they are wanted.
        self.projected = [
            (part, group, mechanism.num_heads)
            for part in ("query", "key", "value")
            for group, mechanism in enumerate(self.mechanisms)
            if part in mechanism.projections
        ]
        self.query_key_value = None
        if self.projected:
            width = sum(count for _, _, count in self.projected) * self.head_dim
            self.query_key_value = self._linear(width, "query_key_value")
        raw = not all(mechanism.projections for mechanism in self.mechanisms)
        if raw and self.num_heads * self.head_dim != d_model:
            raise ValueError(
                f"A head without projections is a part of the input: d_model={d_model} has to be "
                f"num_heads * head_dim = {self.num_heads * self.head_dim}."
            )

    def _check_rotary(self, groups):
        for group, mechanism in zip(groups, self.mechanisms, strict=True):
            # A head without projections has nothing to rotate.
            if mechanism.projections and not mechanism.compares_by_dot_product:
                raise ValueError(
                    f"The mechanism {group.name} does not compare queries and keys by their dot "
                    "product, and rotary positions have no meaning for it. Choose other positions, "
                    "or other heads."
                )

    def build(self, x_shape):
        if self.query_key_value is not None:
            self.query_key_value.build(x_shape)
        self._build_heads(x_shape[1], x_shape[1])

    def call(self, x, keep=None, return_attention_scores=False):
        return self._attend(self._heads(x), keep, return_attention_scores)

    def start(self, batch_size, length):
        """The state before the first of at most `length` places."""
        return [mechanism.start(batch_size, length) for mechanism in self.mechanisms]

    def step(self, x, state, index):
        """Takes in x [B, 1, D] at position `index`; returns the output [B, 1, D] and the state."""
        heads = self._heads(x, index)
        results = [
            mechanism.step(*of_group, state=group_state, index=index)
            for mechanism, of_group, group_state in zip(self.mechanisms, heads, state, strict=True)
        ]
        outputs, state = zip(*results, strict=True)  # [B, H_group, 1, K]
        outputs = ops.reshape(_join(outputs), (-1, 1, self.num_heads * self.head_dim))
        return self._project(outputs), list(state)

    def _heads(self, x, offset=0):
        """The query, key and value [B, H_group, T, K] of each group."""
        if len(self.projected) == 3 and len(self.mechanisms) == 1:  # all alike: the usual case
            return [self._rotate(*self._split_heads(self.query_key_value(x), 3), offset)]
        heads = [{} for _ in self.mechanisms]
        if self.projected:
            (joined,) = self._split_heads(self.query_key_value(x), 1)
            parts = _cut(joined, [count for _, _, count in self.projected])
            for (name, group, _), part in zip(self.projected, parts, strict=True):
                heads[group][name] = part
        if not all(heads):
            (own,) = self._split_heads(x, 1)
            raw = self._of_groups(own)
        triples = []
        for group, parts in enumerate(heads):
            if not parts:
                triples.append((raw[group],) * 3)
                continue
            query = parts.get("query", parts["value"])
            triples.append(self._rotate(query, parts.get("key", query), parts["value"], offset))
        return triples

    def _rotate(self, query, key, value, offset):
        if self.rotary is not None:
            query, key = self.rotary(query, offset=offset), self.rotary(key, offset=offset)
        return query, key, value


@keras.saving.register_keras_serializable("keras_transformer")
class CrossAttention(MultiHeadAttention):
    """Multi-head attention from one sequence to another, the memory.

    The encoder-decoder attention of Vaswani et al. 2017: queries from the decoder, keys and values
    from the encoder. While decoding, the memory's keys and values are computed once by `remember`
    and looked at by `step` at every place.

    Args:
        d_model: D, the size of queries and outputs.
        num_heads: H.
        head_dim: K, the size of each head; d_model / num_heads by default.
        heads: what each head does, such as "dot" for all of them.
        dropout: rate of dropout on the attention weights.

    Call arguments:
        x: [B, T, D], where the queries come from.
        memory: [B, S, D'], where keys and values come from.
        keep: bool [B, S], True where the memory has a token.
        return_attention_scores: whether to return the weights [B, H, T, S] as well.

    Returns:
        [B, T, D], or that and the attention scores.

    Example:

    >>> import keras
    >>> from keras_transformer import CrossAttention
    >>> question, text = keras.random.normal((2, 3, 64)), keras.random.normal((2, 9, 64))
    >>> output, scores = CrossAttention(d_model=64, num_heads=4)(
    ...     question, text, return_attention_scores=True
    ... )
    >>> tuple(output.shape), tuple(scores.shape)
    ((2, 3, 64), (2, 4, 3, 9))
    """

    cross = True

    def __init__(self, d_model, num_heads, head_dim=None, heads="dot", dropout=0.0, **kwargs):
        super().__init__(d_model, num_heads, head_dim, heads, False, dropout, **kwargs)
        width = self.num_heads * self.head_dim
        self.query = self._linear(width, "query")
        self.key_value = self._linear(2 * width, "key_value")

    def build(self, x_shape, memory_shape):
        self.query.build(x_shape)
        self.key_value.build(memory_shape)
        self._build_heads(x_shape[1], memory_shape[1])

    def call(self, x, memory, keep=None, return_attention_scores=False):
        heads = (
            *self._split_heads(self.query(x), 1),
            *self._split_heads(self.key_value(memory), 2),
        )
        heads = list(zip(*map(self._of_groups, heads), strict=True))
        return self._attend(heads, keep, return_attention_scores)

    def remember(self, memory, keep=None):
        """What the heads need of a memory [B, S, D'], computed once before the first step."""
        key, value = map(self._of_groups, self._split_heads(self.key_value(memory), 2))
        return [
            mechanism.remember(*of_group, keep)
            for mechanism, *of_group in zip(self.mechanisms, key, value, strict=True)
        ]

    def start(self, rows, remembered):
        """The state of so many hypotheses before the first place."""
        return [
            mechanism.start_recall(rows, of_group)
            for mechanism, of_group in zip(self.mechanisms, remembered, strict=True)
        ]

    def step(self, x, remembered, state):
        """Attends from one place of N hypotheses a sentence to what `remember` returned.

        Args:
            x: [B N, 1, D], the hypotheses of a sentence one after the other.
            remembered: what `remember` returned of the B sentences.
            state: what `start` or the last `step` returned, of B N rows.

        Returns:
            The output [B N, 1, D], the attention scores [B, H, N, S] and the new state.
        """
        batch_size = ops.shape(tree.flatten(remembered)[0])[0]
        query = ops.reshape(self.query(x), (batch_size, -1, self.num_heads, self.head_dim))
        query = self._of_groups(ops.transpose(query, (0, 2, 1, 3)))  # [B, H_group, N, K] each
        results = [
            mechanism.recall(*of_group)
            for mechanism, *of_group in zip(self.mechanisms, query, remembered, state, strict=True)
        ]
        outputs, scores, state = zip(*results, strict=True)
        outputs = ops.transpose(_join(outputs), (0, 2, 1, 3))  # [B, N, H, K]
        outputs = ops.reshape(outputs, (-1, 1, self.num_heads * self.head_dim))
        return self._project(outputs), _join(scores), list(state)
