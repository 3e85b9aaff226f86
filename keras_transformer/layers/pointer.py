"""The copy mechanism: a distribution over the vocabulary and the words of the source."""

import keras
from keras import ops

from keras_transformer.layers.linear import Linear


@keras.saving.register_keras_serializable("keras_transformer")
class Pointer(keras.layers.Layer):
    """Writes a token of the vocabulary, or copies one of the source (See et al. 2017, section 2.2).

    P(w) = g P_vocabulary(w) + (1 - g) sum_{s: source_s = w} a_s, with a the attention and
    g = sigmoid(w . x + b) the probability of writing. The paper computes g from the context, the
    state and the input of an RNN; a decoder's output has all three in it.

    Args:
        copy_words: C, how many words that the vocabulary does not know a source can have. Their ids
            are V, ..., V + C - 1.

    Call arguments:
        x: decoder outputs [B, T, D].
        logits: of the vocabulary [B, T, V].
        attention: over the source [B, T, S].
        source: ids [B, S].

    Returns:
        log P [B, T, V + C], float32.

    Example:

    >>> import keras
    >>> from keras_transformer.layers.pointer import Pointer
    >>> x, logits = keras.ops.ones((1, 1, 8)), keras.ops.zeros((1, 1, 10))
    >>> attention, source = keras.ops.array([[[0.0, 1.0]]]), keras.ops.array([[5, 11]])
    >>> log_p = Pointer(copy_words=4)(x, logits, attention, source)
    >>> int(keras.ops.argmax(log_p[0, 0]))
    11
    """

    def __init__(self, copy_words, **kwargs):
        super().__init__(**kwargs)
        self.copy_words = copy_words
        self.gate = Linear(1, name="gate", dtype=self.dtype_policy)

    def build(self, x_shape, logits_shape, attention_shape, source_shape):
        self.gate.build(x_shape)

    def call(self, x, logits, attention, source):
        gate = ops.sigmoid(ops.cast(self.gate(x), "float32"))  # [B, T, 1]
        written = gate * ops.softmax(ops.cast(logits, "float32"), axis=-1)
        written = ops.pad(written, ((0, 0), (0, 0), (0, self.copy_words)))  # [B, T, V + C]
        copied = (1 - gate) * ops.cast(attention, "float32")  # [B, T, S]
        size, (rows, length) = written.shape[-1], ops.shape(copied)[:2]
        # Where each weight goes in [B T, V + C]; what goes to one place is added up.
        row = ops.reshape(ops.arange(rows * length, dtype="int32"), (rows, length, 1))
        token = ops.broadcast_to(ops.cast(source, "int32")[:, None, :], ops.shape(copied))
        places = ops.stack([ops.broadcast_to(row, ops.shape(copied)), token], axis=-1)
        copied = ops.scatter(
            ops.reshape(places, (-1, 2)), ops.reshape(copied, (-1,)), (rows * length, size)
        )
        total = written + ops.reshape(copied, (rows, length, size))
        return ops.log(ops.maximum(total, 1e-20))
