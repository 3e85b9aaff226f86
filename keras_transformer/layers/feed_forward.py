"""The position-wise feed-forward network."""

import keras
from keras import ops

from keras_transformer.layers.linear import Linear


@keras.saving.register_keras_serializable("keras_transformer")
class FeedForward(keras.layers.Layer):
    """Position-wise feed-forward network, max(0, x W1 + b1) W2 + b2 (Vaswani et al. 2017, 3.3).

    The same two linear maps at every place, which is to say two convolutions of width 1. With
    `gated=True` the inner vector is activation(x W) * (x V) instead (Shazeer 2020, "GLU Variants
    Improve Transformer"); to keep the number of weights, take 2/3 of d_ff.

    Args:
        d_model: D, the size of inputs and outputs.
        d_ff: F, the inner size.
        activation: "relu", "gelu", or any other activation that Keras knows by name.
        gated: whether the activation gates a second linear map.
        dropout: rate of dropout on the inner vector (not in the paper, but in its code).

    Call arguments:
        x: [B, T, D].

    Returns:
        [B, T, D].

    Example:

    >>> import keras
    >>> from keras_transformer import FeedForward
    >>> x = keras.random.normal((2, 7, 64))
    >>> tuple(FeedForward(d_model=64, d_ff=256)(x).shape)
    (2, 7, 64)
    >>> swiglu = FeedForward(d_model=64, d_ff=170, activation="silu", gated=True)
    >>> tuple(swiglu(x).shape)
    (2, 7, 64)
    """

    def __init__(self, d_model, d_ff, activation="relu", gated=False, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.d_ff = d_ff
        self.activation = keras.activations.get(activation)
        self.gated = gated
        # Both linear maps of a gated network read x: one matrix product serves for the two.
        self.inner = Linear(2 * d_ff if gated else d_ff, name="inner", dtype=self.dtype_policy)
        self.outer = Linear(d_model, name="outer", dtype=self.dtype_policy)
        self.inner_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, x_shape):
        self.inner.build(x_shape)
        self.outer.build((*x_shape[:-1], self.d_ff))

    def call(self, x):
        x = self.inner(x)  # [B, T, F], or [B, T, 2 F] when gated
        if self.gated:
            gate, linear = ops.split(x, 2, axis=-1)
            x = self.activation(gate) * linear  # [B, T, F]
        else:
            x = self.activation(x)
        return self.outer(self.inner_dropout(x))
