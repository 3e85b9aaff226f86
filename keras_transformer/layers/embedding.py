"""Tokens as vectors, and vectors as scores of tokens."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_transformer")
class TokenEmbedding(keras.layers.ReversibleEmbedding):
    """Token embedding times sqrt(d_model), whose table is also the output projection.

    Vaswani et al. 2017, section 3.4, after Press and Wolf 2017. With a standard deviation of
    d_model^-0.5 the scaled embeddings have unit variance, as the position encodings roughly do,
    and the logits of a normalised vector have unit variance as well. One layer may serve source,
    target and output.

    Args:
        input_dim: V, the size of the vocabulary.
        output_dim: D, the size of the model.

    Call arguments:
        inputs: ids [B, T]; or vectors [B, T, D] with `reverse=True`.
        reverse: whether to give the logits [B, T, V] of vectors instead of embedding ids.

    Returns:
        [B, T, D], or [B, T, V] with `reverse=True`.

    Example:

    >>> import keras
    >>> from keras_transformer import TokenEmbedding
    >>> embedding = TokenEmbedding(input_dim=100, output_dim=16)
    >>> vectors = embedding(keras.ops.array([[5, 7, 2]]))
    >>> tuple(vectors.shape), tuple(embedding(vectors, reverse=True).shape)
    ((1, 3, 16), (1, 3, 100))
    """

    def __init__(self, input_dim, output_dim, embeddings_initializer=None, **kwargs):
        if embeddings_initializer is None:
            embeddings_initializer = keras.initializers.RandomNormal(stddev=output_dim**-0.5)
        super().__init__(
            input_dim, output_dim, embeddings_initializer=embeddings_initializer, **kwargs
        )

    def call(self, inputs, reverse=False, training=False):
        if reverse:
            return super().call(inputs, reverse=True)
        scale = self.output_dim**0.5
        if not training:
            return super().call(inputs) * scale
        # Scaled first, for a dense gradient of the table. On TensorFlow a lookup's own gradient has
        # a row for each token, and Keras's optimizers would take a token that comes ten times for
        # ten gradients: the sum of their squares, and not the square of their sum.
        table = ops.cast(self.embeddings, self.compute_dtype) * scale
        return ops.take(table, ops.cast(inputs, "int32"), axis=0)

    def compute_output_spec(self, inputs, reverse=False, training=False):
        return super().compute_output_spec(inputs, reverse)
