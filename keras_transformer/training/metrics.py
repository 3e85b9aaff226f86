"""Metrics over the tokens of a batch, not over its padding."""

import keras
from keras import ops

from keras_transformer.training.loss import cross_entropy, is_most_probable, token_weight


class TokenMean(keras.metrics.Mean):
    """The mean of a function of labels and logits over all tokens."""

    def measure(self, y_true, y_pred):
        """The value of each place, [B, T]."""
        raise NotImplementedError

    def update_state(self, y_true, y_pred, sample_weight=None):
        weight = token_weight(y_true, sample_weight, self.dtype)
        super().update_state(self.measure(y_true, y_pred), sample_weight=weight)


@keras.saving.register_keras_serializable("keras_transformer")
class TokenAccuracy(TokenMean):
    """The share of tokens whose logit is the largest.

    Example:

    >>> import keras
    >>> from keras_transformer import TokenAccuracy
    >>> accuracy = TokenAccuracy()
    >>> accuracy.update_state(keras.ops.array([[1, 2, 0]]), keras.ops.eye(3)[None])
    >>> float(accuracy.result())
    0.0
    """

    def __init__(self, name="accuracy", **kwargs):
        super().__init__(name=name, **kwargs)

    def measure(self, y_true, y_pred):
        return ops.cast(is_most_probable(y_true, y_pred), self.dtype)


@keras.saving.register_keras_serializable("keras_transformer")
class Perplexity(TokenMean):
    """exp of the mean cross-entropy of a token, without label smoothing.

    Example:

    >>> import keras
    >>> from keras_transformer import Perplexity
    >>> perplexity = Perplexity()
    >>> perplexity.update_state(keras.ops.array([[3, 0]]), keras.ops.zeros((1, 2, 8)))
    >>> round(float(perplexity.result()), 3)
    8.0
    """

    def __init__(self, name="perplexity", **kwargs):
        super().__init__(name=name, **kwargs)

    def measure(self, y_true, y_pred):
        return cross_entropy(y_true, y_pred)

    def result(self):
        return ops.exp(super().result())
