"""The encoder: a stack of layers, each self-attention and feed-forward."""

import keras

from keras_transformer.attention.multi_head import SelfAttention
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.stack import Stack


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderLayer(keras.layers.Layer):
    """One encoder layer: self-attention, then feed-forward (Vaswani et al. 2017, section 3.1).

    Args:
        d_model: D, the size of inputs and outputs.
        d_ff: F, the inner size of the feed-forward network.
        num_heads: H.
        heads: what each head does, such as "dot" for all of them.
        rotary: whether queries and keys are rotated by their positions.
        activation: the feed-forward network's activation.
        gated: whether that activation is a gate.
        norm: "post" as in the paper, or "pre".
        dropout: rate of dropout on each sublayer's output.
        attention_dropout: rate of dropout on the attention weights.
        feed_forward_dropout: rate of dropout inside the feed-forward network.

    Call arguments:
        x: [B, S, D].
        keep: bool [B, S], True where there is a token.
        return_attention_scores: whether to return the weights [B, H, S, S] as well.

    Returns:
        [B, S, D], or that and the attention scores.

    Example:

    >>> import keras
    >>> from keras_transformer import EncoderLayer
    >>> layer = EncoderLayer(d_model=64, d_ff=256, num_heads=4)
    >>> tuple(layer(keras.random.normal((2, 7, 64))).shape)
    (2, 7, 64)
    """

    def __init__(
        self,
        d_model,
        d_ff,
        num_heads,
        heads="dot",
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
                rotary=rotary,
                dropout=attention_dropout,
                dtype=dtype,
            ),
            "self_attention",
        )
        self.feed_forward = residual(
            FeedForward(d_model, d_ff, activation, gated, feed_forward_dropout, dtype=dtype),
            "feed_forward",
        )

    def build(self, x_shape):
        self.self_attention.build(x_shape)
        self.feed_forward.build(x_shape)

    def call(self, x, keep=None, return_attention_scores=False):
        if not return_attention_scores:
            return self.feed_forward(self.self_attention(x, keep=keep))
        x, scores = self.self_attention(x, keep=keep, return_attention_scores=True)
        return self.feed_forward(x), scores


@keras.saving.register_keras_serializable("keras_transformer")
class Encoder(Stack):
    """A stack of encoder layers (Vaswani et al. 2017, section 3.1).

    Args:
        layers: the encoder layers, first to last.

    Call arguments:
        x: [B, S, D].
        keep: bool [B, S], True where there is a token.
        return_all_layers: whether to return every layer's output instead of the last one's alone.
        return_attention_scores: whether to return the weights [B, H, S, S] of each layer as well.

    Returns:
        [B, S, D], or a list of them, first layer first; and a list of attention scores where asked.

    Example:

    >>> import keras
    >>> from keras_transformer import Encoder, EncoderLayer
    >>> encoder = Encoder([EncoderLayer(d_model=64, d_ff=256, num_heads=4) for _ in range(2)])
    >>> x, keep = keras.random.normal((2, 3, 64)), keras.ops.array([[1, 1, 1], [1, 0, 0]], "bool")
    >>> tuple(encoder(x, keep=keep).shape)
    (2, 3, 64)
    """

    def build(self, x_shape):
        self._build_stack(x_shape)

    def call(self, x, keep=None, return_all_layers=False, return_attention_scores=False):
        outputs, scores = [], []
        for layer in self.layers:
            if return_attention_scores:
                x, layer_scores = layer(x, keep=keep, return_attention_scores=True)
                scores.append(layer_scores)
            else:
                x = layer(x, keep=keep)
            outputs.append(x)
        if return_all_layers:
            output = [self._finish(x) for x in outputs]
        else:
            output = self._finish(outputs[-1])
        return (output, scores) if return_attention_scores else output
