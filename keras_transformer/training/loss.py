"""Cross-entropy with smoothed labels."""

import keras
from keras import ops

from keras_transformer import masks


@keras.saving.register_keras_serializable("keras_transformer")
class LabelSmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy against labels of which a share is spread evenly over the vocabulary.

    Szegedy et al. 2016; label smoothing of 0.1 in Vaswani et al. 2017, section 5.4. With z the
    logits and e the smoothing, (1-e) (-log p(y)) + e/V sum_v (-log p(v)) is
    (1-e) (logsumexp z - z_y) + e (logsumexp z - mean z): integer labels are enough, no one-hot
    matrix is made. Padding (label 0) counts for nothing; the loss is the mean over the tokens.

    Args:
        label_smoothing: the share e.

    Call arguments:
        y_true: labels [B, T].
        y_pred: logits [B, T, V].

    Example:

    >>> import keras
    >>> from keras_transformer import LabelSmoothedCrossEntropy
    >>> loss = LabelSmoothedCrossEntropy(label_smoothing=0.1)
    >>> labels, logits = keras.ops.array([[3, 0]]), keras.ops.zeros((1, 2, 8))
    >>> round(float(loss(labels, logits)), 4)  # log 8: the padded place is not counted
    2.0794
    """

    def __init__(self, label_smoothing=0.0, name="loss", **kwargs):
        super().__init__(name=name, reduction="mean_with_sample_weight", **kwargs)
        self.label_smoothing = label_smoothing

    def __call__(self, y_true, y_pred, sample_weight=None):
        weight = token_weight(y_true, sample_weight, self.dtype)
        return super().__call__(y_true, y_pred, sample_weight=weight)

    def call(self, y_true, y_pred):
        loss = cross_entropy(y_true, y_pred)
        if self.label_smoothing:
            uniform = ops.logsumexp(y_pred, axis=-1) - ops.mean(y_pred, axis=-1)
            loss = (1 - self.label_smoothing) * loss + self.label_smoothing * uniform
        return loss

    def get_config(self):
        return {"label_smoothing": self.label_smoothing, "name": self.name, "dtype": self.dtype}


def token_weight(y_true, sample_weight, dtype):
    """1 for a token, 0 for padding [B, T], times weights of sentences [B] or tokens [B, T]."""
    weight = ops.cast(masks.keep_tokens(y_true), dtype)
    if sample_weight is None:
        return weight
    sample_weight = ops.cast(sample_weight, dtype)
    if len(sample_weight.shape) == 1:
        sample_weight = sample_weight[:, None]
    return weight * sample_weight


def cross_entropy(y_true, y_pred):
    """-log p(y) of each place, [B, T], from labels [B, T] and logits [B, T, V]."""
    return ops.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
