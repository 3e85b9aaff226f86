"""The residual connection around every sublayer."""

import keras

NORMS = ("post", "pre")


@keras.saving.register_keras_serializable("keras_transformer")
class Residual(keras.layers.Wrapper):
    """A residual connection with dropout and layer normalisation around a sublayer.

    "post", as in the paper: LayerNorm(x + Dropout(Sublayer(x))) (Vaswani et al. 2017, 3.1, 5.4).
    "pre": x + Dropout(Sublayer(LayerNorm(x))) (Xiong et al. 2020), which trains deep stacks without
    warm-up but needs one more normalisation after the last layer.

    Args:
        layer: the sublayer; its output has the shape of its input.
        norm: "post" or "pre".
        dropout: rate of dropout on the sublayer's output.

    Call arguments:
        x: [B, T, D].
        memory, keep, return_attention_scores: handed to the sublayer where given.

    Returns:
        [B, T, D], or that and the attention scores.

    Example:

    >>> import keras
    >>> from keras_transformer import FeedForward, Residual
    >>> block = Residual(FeedForward(d_model=64, d_ff=256), norm="pre", dropout=0.1)
    >>> tuple(block(keras.random.normal((2, 7, 64))).shape)
    (2, 7, 64)
    """

    def __init__(self, layer, norm="post", dropout=0.0, **kwargs):
        super().__init__(layer, **kwargs)
        if norm not in NORMS:
            raise ValueError(f"norm={norm!r} is not one of {', '.join(map(repr, NORMS))}.")
        self.norm = norm
        self.dropout = dropout
        self.layer_norm = layer_norm(self.dtype_policy)
        self.output_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, x_shape, memory_shape=None):
        self.layer_norm.build(x_shape)
        if not self.layer.built:
            self.layer.build(x_shape, *([] if memory_shape is None else [memory_shape]))

    def call(self, x, memory=None, keep=None, return_attention_scores=False):
        given = {}
        if memory is not None:
            given["memory"] = memory
        if keep is not None:
            given["keep"] = keep
        if return_attention_scores:
            given["return_attention_scores"] = True
        return self.around(x, lambda x: self.layer(x, **given))

    def around(self, x, sublayer):
        """The connection around any function of x; what it returns beside its output is kept."""
        output = sublayer(self.layer_norm(x) if self.norm == "pre" else x)
        output, *beside = output if isinstance(output, tuple) else (output,)
        x = x + self.output_dropout(output)
        x = self.layer_norm(x) if self.norm == "post" else x
        return (x, *beside) if beside else x

    def get_config(self):
        return {**super().get_config(), "norm": self.norm, "dropout": self.dropout}


def layer_norm(dtype, name=None):
    """Layer normalisation as every part of the model uses it."""
    # Keras's epsilon of 1e-3 is meant for batch statistics; 1e-5 is what translation models use.
    return keras.layers.LayerNormalization(epsilon=1e-5, dtype=dtype, name=name)
