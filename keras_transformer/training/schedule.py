"""The learning rate: up in a line, down with the inverse square root, at last to zero."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_transformer")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to a peak, then decay with the inverse square root of the step.

    peak * min(step / warmup_steps, sqrt(warmup_steps / step)). The paper's formula,
    d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (Vaswani et al. 2017, equation 3), is
    the same curve with the peak (d_model * warmup_steps)^-0.5: `WarmupSchedule.of_paper`.

    With a cool-down, the last updates' rate also falls to zero in a line (Zhai et al. 2022,
    "Scaling Vision Transformers"): weights settle, as they do when checkpoints are averaged.

    Args:
        peak_learning_rate: the highest learning rate, reached after the warm-up.
        warmup_steps: updates until then.
        cooldown_steps: updates of the cool-down.
        total_steps: all updates of the training, at the end of which the cool-down ends. Of a
            schedule with a cool-down it is a variable: it may change while a model trains.

    Example:

    >>> import keras
    >>> from keras_transformer import WarmupSchedule
    >>> schedule = WarmupSchedule.of_paper(d_model=512, warmup_steps=4000)
    >>> optimizer = keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9)
    >>> [f"{float(schedule(step)):.2e}" for step in (0, 3999, 15999)]
    ['1.75e-07', '6.99e-04', '3.49e-04']
    """

    def __init__(self, peak_learning_rate, warmup_steps=4000, cooldown_steps=0, total_steps=None):
        if cooldown_steps and total_steps is None:
            raise ValueError("A cool-down ends with the training: give total_steps as well.")
        self.peak_learning_rate = peak_learning_rate
        self.warmup_steps = warmup_steps
        self.cooldown_steps = cooldown_steps
        self.total_steps = total_steps
        if cooldown_steps:
            self.total_steps = keras.Variable(total_steps, trainable=False, dtype="int32")

    @classmethod
    def of_paper(cls, d_model, warmup_steps=4000, **options):
        """The schedule of the paper, whose peak depends on the size of the model."""
        return cls((d_model * warmup_steps) ** -0.5, warmup_steps, **options)

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1  # Keras counts updates from 0, the paper from 1
        rise, fall = step / self.warmup_steps, ops.sqrt(self.warmup_steps / step)
        rate = self.peak_learning_rate * ops.minimum(rise, fall)
        if self.cooldown_steps:
            # This update among them.
            left = ops.cast(self.total_steps, "float32") - step + 1
            rate = rate * ops.clip(left / self.cooldown_steps, 0.0, 1.0)
        return rate

    def get_config(self):
        return {
            "peak_learning_rate": self.peak_learning_rate,
            "warmup_steps": self.warmup_steps,
            "cooldown_steps": self.cooldown_steps,
            "total_steps": int(self.total_steps) if self.cooldown_steps else self.total_steps,
        }
