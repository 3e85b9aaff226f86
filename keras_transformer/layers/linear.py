"""The linear maps of the model."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_transformer")
class Linear(keras.layers.Dense):
    """Keras's dense layer as one product of two matrices, over all places at once.

    Keras multiplies [B, T, D] by a matrix with a general tensor product, whose dozen small
    operations on shapes count when a single token is decoded.

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
        outputs = ops.matmul(rows, self.kernel)
        if outputs.shape[-1] != self.units:  # an exported kernel: see exporting/weights.py
            outputs = outputs[:, : self.units]
        if self.bias is not None:
            outputs = outputs + self.bias
        if self.activation is not None:
            outputs = self.activation(outputs)
        # Where all sizes but one are known, the shape is a constant of the graph.
        sizes = [size if isinstance(size, int) else -1 for size in inputs.shape[:-1]]
        if sizes.count(-1) > 1:
            sizes = ops.shape(inputs)[:-1]
        return ops.reshape(outputs, (*sizes, self.units))
