"""The linear maps of the model."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_transformer")
class Linear(keras.layers.Dense):
    """Keras's dense layer as one product of two matrices, over all places at once.

    Keras multiplies [B, T, D] by a matrix with a general tensor product, whose dozen small
    operations on shapes take longer than the product itself when a single token is decoded.

    Args:
        units: the size of the output; and what else `keras.layers.Dense` takes.

    Call arguments:
        inputs: [..., D].

    Returns:
        [..., units].

    Example:

    >>> import keras
    >>> from keras_transformer.layers.linear import Linear
    >>> tuple(Linear(8)(keras.ops.ones((2, 3, 4))).shape)
    (2, 3, 8)
    """

    def call(self, inputs, training=None):
        rows = ops.reshape(inputs, (-1, inputs.shape[-1]))  # [B T, D]
        # An exported kernel may have more columns than there are units: see exporting/weights.py.
        outputs = ops.matmul(rows, self.kernel)[:, : self.units]
        if self.bias is not None:
            outputs = outputs + self.bias
        if self.activation is not None:
            outputs = self.activation(outputs)
        return ops.reshape(outputs, (*ops.shape(inputs)[:-1], self.units))
