"""The weights as an exported model keeps them: the same numbers, laid out for speed."""

import dataclasses

import keras
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.models.transformer import Transformer

# Rows of a matrix that lie a multiple of 2 KiB apart fall into few lines of the processor's caches
# and drive each other out while a product is computed. With 16 columns more, and those cut off
# again, it takes 0.5 to 0.8 times the time (float32, 512 to 2048 columns, 16 to 128 rows).
SLOW_STRIDE, MORE_COLUMNS = 2048, 16


def copy_for_serving(model: Transformer, dtype: str) -> Transformer:
    """A model of the same function, in a dtype, whose output projection has a matrix of its own.

    To multiply by the transposed embedding table costs TensorFlow up to ten times as much.
    """
    try:
        copy = Transformer(dataclasses.replace(model.config, tie_output=False), dtype=dtype)
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"dtype {dtype!r}: {reason} Give a Keras dtype policy.") from None
    weights = list(copy.weights)
    if model.config.tie_output:
        projection = copy.output_projection.kernel
        projection.assign(model.target_embedding.embeddings.numpy().T)
        weights = [weight for weight in weights if weight is not projection]
    for weight, value in zip(weights, model.weights, strict=True):
        weight.assign(value)
    return copy


class Weights(tf.Module):
    """The weights of a model, for the graph.

    Args:
        model: a `Transformer` or an `Ensemble`.
    """

    def __init__(self, model):
        super().__init__("weights")
        self.values = [_lay_out(variable) for variable in model.weights]

    def read(self, model) -> keras.StatelessScope:
        """A scope in which the model has these weights.

        They are read here, and not again at every step of a loop.
        """
        scope = keras.StatelessScope()
        for variable, value in zip(model.weights, self.values, strict=True):
            scope.add_update((variable, tf.identity(value)))
        return scope


def _lay_out(variable):
    # All kernels are those of `Linear` layers, which cut the additional columns off.
    value = variable.numpy()
    if variable.name == "kernel" and value.strides[0] % SLOW_STRIDE == 0:
        value = tf.pad(value, [[0, 0], [0, MORE_COLUMNS]])
    return tf.Variable(value, trainable=False, name=variable.path)
