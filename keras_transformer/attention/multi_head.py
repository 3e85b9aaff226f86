"""Multi-head attention: project, give each group of heads its mechanism, combine."""

import keras
from keras import ops

from keras_transformer.attention import MECHANISMS
from keras_transformer.attention.spec import parse_heads
from keras_transformer.layers.linear import Linear
from keras_transformer.layers.positions import RotaryPositions


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
        self.output_projection = self._linear(d_model, "output_projection")

    def _make(self, group, dropout):
        mechanism = MECHANISMS[group.name]
        if self.causal and not mechanism.can_be_causal:
            raise ValueError(
                f"The mechanism {group.name!r} sees the whole sequence at once and cannot be "
                "causal: use it in the encoder, not in the decoder."
            )
        if self.cross and not mechanism.can_cross:
            raise ValueError(
                f"The mechanism {group.name!r} works within one sequence: use it for "
                "self-attention, not for cross-attention."
            )
        return mechanism(
            num_heads=group.count,
            head_dim=self.head_dim,
            causal=self.causal,
            dropout=dropout,
            dtype=self.dtype_policy,
            **group.options,
        )

    def _linear(self, units, name):
        return Linear(units, use_bias=False, name=name, dtype=self.dtype_policy)

    def _build_heads(self, num_queries, num_keys):
        for mechanism in self.mechanisms:
            query_shape = (None, mechanism.num_heads, num_queries, self.head_dim)
            key_shape = (None, mechanism.num_heads, num_keys, self.head_dim)
            mechanism.build(query_shape, key_shape, key_shape)
        self.output_projection.build((None, None, self.num_heads * self.head_dim))

    def _split_heads(self, x, parts):
        """[B, T, parts H K] -> `parts` tensors [B, H, T, K]."""
        batch_size, length = ops.shape(x)[0], ops.shape(x)[1]
        x = ops.reshape(x, (batch_size, length, parts, self.num_heads, self.head_dim))
        x = ops.transpose(x, (2, 0, 3, 1, 4))  # [parts, B, H, T, K]
        return ops.unstack(x, parts)  # not x[0], x[1], ...: the gradient of a slice is slow

    def _combine_heads(self, outputs):
        """The outputs [B, H_group, T, K] of all groups -> [B, T, D]."""
        x = ops.transpose(_join(outputs), (0, 2, 1, 3))  # [B, T, H, K]
        batch_size, length = ops.shape(x)[0], ops.shape(x)[1]
        return self.output_projection(
            ops.reshape(x, (batch_size, length, self.num_heads * self.head_dim))
        )

    def _of_groups(self, *tensors):
        """Each mechanism with its own heads of the tensors [B, H, T, K]."""
        if len(self.mechanisms) == 1:
            yield self.mechanisms[0], tensors
            return
        first = 0
        for mechanism in self.mechanisms:
            last = first + mechanism.num_heads
            yield mechanism, [x[:, first:last] for x in tensors]
            first = last

    def _attend(self, query, key, value, keep, return_attention_scores):
        results = [
            mechanism(*of_group, keep=keep, return_attention_scores=return_attention_scores)
            for mechanism, of_group in self._of_groups(query, key, value)
        ]
        if not return_attention_scores:
            return self._combine_heads(results)
        outputs, scores = zip(*results, strict=True)
        return self._combine_heads(outputs), _join(scores)


def _join(groups):
    """The heads of all groups, [B, H_group, ...] each -> [B, H, ...]."""
    return groups[0] if len(groups) == 1 else ops.concatenate(groups, axis=1)


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
        rotary: whether queries and keys are rotated by their positions.

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
        width = self.num_heads * self.head_dim
        self.query_key_value = self._linear(3 * width, "query_key_value")

    def build(self, x_shape):
        self.query_key_value.build(x_shape)
        self._build_heads(x_shape[1], x_shape[1])

    def call(self, x, keep=None, return_attention_scores=False):
        heads = self._split_heads(self.query_key_value(x), 3)  # [B, H, T, K] each
        return self._attend(*self._rotate(*heads), keep, return_attention_scores)

    def start(self, batch_size, length):
        """The state before the first of at most `length` places."""
        return [mechanism.start(batch_size, length) for mechanism in self.mechanisms]

    def step(self, x, state, index):
        """Takes in x [B, 1, D] at position `index`; returns the output [B, 1, D] and the state."""
        # A single place needs no transposition to have its heads apart.
        heads = ops.reshape(self.query_key_value(x), (-1, 3, self.num_heads, 1, self.head_dim))
        parts = self._of_groups(*self._rotate(*ops.unstack(heads, 3, axis=1), offset=index))
        results = [
            mechanism.step(*of_group, state=group_state, index=index)
            for (mechanism, of_group), group_state in zip(parts, state, strict=True)
        ]
        outputs, state = zip(*results, strict=True)  # [B, H_group, 1, K]
        outputs = ops.reshape(_join(outputs), (-1, 1, self.num_heads * self.head_dim))
        return self.output_projection(outputs), list(state)

    def _rotate(self, query, key, value, offset=0):
        if self.rotary is not None:
            query, key = self.rotary(query, offset=offset), self.rotary(key, offset=offset)
        return query, key, value


@keras.saving.register_keras_serializable("keras_transformer")
class CrossAttention(MultiHeadAttention):
    """Multi-head attention from one sequence to another, the memory.

    The encoder-decoder attention of Vaswani et al. 2017: queries from the decoder, keys and values
    from the encoder. While decoding, the memory's keys and values are computed once by `remember`
    and looked at by `recall` at every place.

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
        return self.recall(x, self.remember(memory), keep, return_attention_scores)

    def remember(self, memory):
        """The keys and the values [B, H, S, K] of a memory [B, S, D']."""
        return self._split_heads(self.key_value(memory), 2)

    def recall(self, x, remembered, keep=None, return_attention_scores=False):
        """Attends from x [B, T, D] to what `remember` returned."""
        (query,) = self._split_heads(self.query(x), 1)
        return self._attend(query, *remembered, keep, return_attention_scores)

    def step(self, x, remembered, keep=None):
        """Attends from one place of N hypotheses a sentence to what `remember` returned.

        The hypotheses of a sentence are so many queries to its one memory, which need not be copied
        for each of them.

        Args:
            x: [B N, 1, D], the hypotheses of a sentence one after the other.
            remembered: what `remember` returned of the B sentences.
            keep: bool [B, S], True where the memory has a token.

        Returns:
            The output [B N, 1, D] and the attention scores [B, H, N, S].
        """
        batch_size = ops.shape(remembered[0])[0]
        query = ops.reshape(self.query(x), (batch_size, -1, self.num_heads, self.head_dim))
        query = ops.transpose(query, (0, 2, 1, 3))  # [B, H, N, K]
        outputs, scores = zip(
            *(
                mechanism(*of_group, keep=keep, return_attention_scores=True)
                for mechanism, of_group in self._of_groups(query, *remembered)
            ),
            strict=True,
        )
        outputs = ops.transpose(_join(outputs), (0, 2, 1, 3))  # [B, N, H, K]
        outputs = ops.reshape(outputs, (-1, 1, self.num_heads * self.head_dim))
        return self.output_projection(outputs), _join(scores)
