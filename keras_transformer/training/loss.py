"""Cross-entropy with smoothed labels."""

import keras
from keras import ops

from keras_transformer import masks


@keras.saving.register_keras_serializable("keras_transformer")
class LabelSmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy against labels of which a share is spread evenly over the vocabulary.

    Szegedy et al. 2016; label smoothing of 0.1 in Vaswani et al. 2017, section 5.4. With z the
    logits and e the smoothing, (1-e) (-log p(y)) + e/V sum_v (-log p(v)) is
    logsumexp z - (1-e) z_y - e mean z: integer labels are enough, no one-hot matrix is made.
    Padding (label 0) counts for nothing; the loss is the mean over the tokens.

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
        return smoothed_cross_entropy(y_true, y_pred, self.label_smoothing)

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
    logit, _, total, largest = _statistics(y_true, y_pred)
    return ops.log(total) + largest - logit


def is_most_probable(y_true, y_pred):
    """Whether no logit [B, T, V] is larger than the label's [B, T]."""
    logit, _, _, largest = _statistics(y_true, y_pred)
    return logit >= largest


def smoothed_cross_entropy(y_true, y_pred, label_smoothing):
    """The loss of each place, [B, T].

    Its gradient, softmax z - (1-e) onehot(y) - e/V, is written down here, because what Keras would
    derive goes over the logits, the largest tensor of a training step, three times as often.
    """
    dtype, rest = y_pred.dtype, 1 - label_smoothing

    @ops.custom_gradient
    def loss_of(logits):
        logit, exponentials, total, largest = _statistics(y_true, logits)
        loss = ops.log(total) + largest - rest * logit
        if label_smoothing:
            loss = loss - label_smoothing * ops.mean(ops.cast(logits, "float32"), axis=-1)

        def gradient(*arguments, upstream=None):
            upstream = arguments[0] if upstream is None else upstream  # [B, T]
            uniform = (label_smoothing / logits.shape[-1]) * upstream
            scale = upstream / total
            others = exponentials * scale[..., None] - uniform[..., None]  # [B, T, V]
            own = ops.exp(logit - largest) * scale - uniform - rest * upstream
            return ops.cast(_put(others, y_true, own), dtype)

        return loss, gradient

    return loss_of(y_pred)


def _statistics(labels, logits):
    """Of each place: the label's logit, all exp(z - largest), their sum, and the largest logit."""
    logits = ops.cast(logits, "float32")
    largest = ops.max(logits, axis=-1)
    exponentials = ops.exp(logits - largest[..., None])
    logit = ops.take_along_axis(logits, ops.cast(labels, "int32")[..., None], axis=-1)[..., 0]
    return logit, exponentials, ops.sum(exponentials, axis=-1), largest


def _put(values, labels, own):
    """Values [B, T, V] with `own` [B, T] in the places of the labels."""
    rows = ops.reshape(values, (-1, values.shape[-1]))  # [B T, V]
    labels = ops.cast(ops.reshape(labels, (-1,)), "int32")
    places = ops.stack([ops.arange(ops.shape(labels)[0], dtype="int32"), labels], axis=1)
    rows = ops.scatter_update(rows, places, ops.reshape(own, (-1,)))
    return ops.reshape(rows, ops.shape(values))
