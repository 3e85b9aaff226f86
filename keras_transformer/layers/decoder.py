"""The decoder: a stack of layers that look at what is written so far and at the memory."""

import keras

from keras_transformer.attention.multi_head import CrossAttention, SelfAttention
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.stack import Stack


@keras.saving.register_keras_serializable("keras_transformer")
class DecoderLayer(keras.layers.Layer):
    """One decoder layer: masked self-attention, cross-attention, feed-forward.

    Vaswani et al. 2017, section 3.1.

    Args:
        d_model: D, the size of inputs and outputs.
        d_ff: F, the inner size of the feed-forward network.
        num_heads: H.
        heads: what each head of the self-attention does, such as "dot" for all of them.
        cross_heads: what each head of the cross-attention does.
        rotary: whether queries and keys of the self-attention are rotated by their positions.
        activation: the feed-forward network's activation.
        gated: whether that activation is a gate.
        norm: "post" as in the paper, or "pre".
        dropout: rate of dropout on each sublayer's output.
        attention_dropout: rate of dropout on the attention weights.
        feed_forward_dropout: rate of dropout inside the feed-forward network.

    Call arguments:
        x: [B, T, D], the target shifted right.
        memory: [B, S, D], from the encoder.
        keep: bool [B, T], True where the target has a token.
        memory_keep: bool [B, S], True where the memory has a token.
        return_attention_scores: whether to return the weights as well.

    Returns:
        [B, T, D], or that, the self-attention's scores [B, H, T, T] and the cross-attention's
        [B, H, T, S].

    Example:

    >>> import keras
    >>> from keras_transformer import DecoderLayer
    >>> layer = DecoderLayer(d_model=64, d_ff=256, num_heads=4)
    >>> target, memory = keras.random.normal((2, 5, 64)), keras.random.normal((2, 9, 64))
    >>> tuple(layer(target, memory).shape)
    (2, 5, 64)
    """

    def __init__(
        self,
        d_model,
        d_ff,
        num_heads,
        heads="dot",
        cross_heads="dot",
        rotary=False,
        activation="relu",
        gated=False,
        norm="post",
        dropout=0.0,
        attention_dropout=0.0,
        feed_forward_dropout=0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        self.norm = norm

        def residual(layer, name):
            return Residual(layer, norm=norm, dropout=dropout, dtype=dtype, name=name)

        self.self_attention = residual(
            SelfAttention(
                d_model,
                num_heads,
                heads=heads,
                causal=True,
                rotary=rotary,
                dropout=attention_dropout,
                dtype=dtype,
            ),
            "self_attention",
        )
        self.cross_attention = residual(
            CrossAttention(
                d_model, num_heads, heads=cross_heads, dropout=attention_dropout, dtype=dtype
            ),
            "cross_attention",
        )
        self.feed_forward = residual(
            FeedForward(d_model, d_ff, activation, gated, feed_forward_dropout, dtype=dtype),
            "feed_forward",
        )

    def build(self, x_shape, memory_shape):
        self.self_attention.build(x_shape)
        self.cross_attention.build(x_shape, memory_shape)
        self.feed_forward.build(x_shape)

    def call(self, x, memory, keep=None, memory_keep=None, return_attention_scores=False):
        if not return_attention_scores:
            x = self.self_attention(x, keep=keep)
            x = self.cross_attention(x, memory=memory, keep=memory_keep)
            return self.feed_forward(x)
        x, self_scores = self.self_attention(x, keep=keep, return_attention_scores=True)
        x, cross_scores = self.cross_attention(
            x, memory=memory, keep=memory_keep, return_attention_scores=True
        )
        return self.feed_forward(x), self_scores, cross_scores

    def remember(self, memory, keep):
        """What the cross-attention needs of a memory [B, S, D], computed once."""
        return self.cross_attention.layer.remember(memory, keep)

    def start(self, batch_size, length, remembered):
        """The state before the first of at most `length` places."""
        return {
            "self_attention": self.self_attention.layer.start(batch_size, length),
            "cross_attention": self.cross_attention.layer.start(batch_size, remembered),
        }

    def step(self, x, state, remembered, index):
        """Takes in one place of N hypotheses a sentence.

        Args:
            x: [B N, 1, D], the hypotheses of a sentence one after the other.
            state: what `start` or the last `step` returned.
            remembered: what `remember` returned, of the B sentences.
            index: int or int tensor, the position of the place.

        Returns:
            The output [B N, 1, D], the new state and the cross-attention's scores [B, H, N, S].
        """
        self_attention, cross_attention = self.self_attention.layer, self.cross_attention.layer
        x, self_state = self.self_attention.around(
            x, lambda x: self_attention.step(x, state["self_attention"], index)
        )
        x, scores, cross_state = self.cross_attention.around(
            x, lambda x: cross_attention.step(x, remembered, state["cross_attention"])
        )
        state = {"self_attention": self_state, "cross_attention": cross_state}
        return self.feed_forward(x), state, scores


@keras.saving.register_keras_serializable("keras_transformer")
class Decoder(Stack):
    """A stack of decoder layers (Vaswani et al. 2017, section 3.1).

    Args:
        layers: the decoder layers, first to last.

    Call arguments:
        x: [B, T, D], the target shifted right.
        memory: [B, S, D] for all layers alike, or a list with one memory a layer.
        keep: bool [B, T], True where the target has a token.
        memory_keep: bool [B, S], True where the memory has a token.
        return_attention_scores: whether to return each layer's weights as well.

    Returns:
        [B, T, D], or that, a list of self-attention scores [B, H, T, T] and a list of
        cross-attention scores [B, H, T, S].

    Example:

    >>> import keras
    >>> from keras_transformer import Decoder, DecoderLayer
    >>> decoder = Decoder([DecoderLayer(d_model=64, d_ff=256, num_heads=4) for _ in range(2)])
    >>> target, memory = keras.random.normal((2, 5, 64)), keras.random.normal((2, 9, 64))
    >>> tuple(decoder(target, memory).shape)
    (2, 5, 64)
    """

    def build(self, x_shape, memory_shape):
        self._build_stack(x_shape, self._per_layer(memory_shape))

    def call(self, x, memory, keep=None, memory_keep=None, return_attention_scores=False):
        self_scores, cross_scores = [], []
        for layer, layer_memory in zip(self.layers, self._per_layer(memory), strict=True):
            if return_attention_scores:
                x, *scores = layer(x, layer_memory, keep, memory_keep, return_attention_scores=True)
                self_scores.append(scores[0])
                cross_scores.append(scores[1])
            else:
                x = layer(x, layer_memory, keep, memory_keep)
        x = self._finish(x)
        return (x, self_scores, cross_scores) if return_attention_scores else x

    def remember(self, memory, keep):
        """What each layer needs of its memory, computed once before the first step."""
        memories = self._per_layer(memory)
        return [
            layer.remember(memory, keep)
            for layer, memory in zip(self.layers, memories, strict=True)
        ]

    def start(self, batch_size, length, remembered):
        """Each layer's state before the first of at most `length` places."""
        return [
            layer.start(batch_size, length, layer_memory)
            for layer, layer_memory in zip(self.layers, remembered, strict=True)
        ]

    def step(self, x, state, remembered, index):
        """Takes in one place, as a layer's `step` does; returns the scores of every layer."""
        new_state, scores = [], []
        for layer, layer_state, layer_memory in zip(self.layers, state, remembered, strict=True):
            x, layer_state, layer_scores = layer.step(x, layer_state, layer_memory, index)
            new_state.append(layer_state)
            scores.append(layer_scores)
        return self._finish(x), new_state, scores

    def _per_layer(self, memory):
        # A shape is a tuple of numbers and a tensor is neither; only a list is one a layer.
        several = isinstance(memory, list)
        return memory if several else [memory] * len(self.layers)
