"""What a run does beside the updates of `model.fit`."""

from pathlib import Path

import keras

from keras_transformer.training.checkpoint import Checkpoints


class Checkpointing(keras.callbacks.Callback):
    """Writes checkpoints while training, and begins from one.

    Args:
        checkpoints: where they go.
        every: updates between two; there is one after each epoch as well.
        steps: batches in an epoch.
        resume_from: the checkpoint to begin with.
    """

    def __init__(
        self, checkpoints: Checkpoints, every: int, steps: int, resume_from: Path | None = None
    ):
        super().__init__()
        self.checkpoints = checkpoints
        self.every = every
        self.steps = steps
        self.resume_from = resume_from

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch, self.step = epoch, 0
        if self.resume_from is not None:
            # Not earlier: `fit` makes the metrics' variables and clears them before this call.
            self.checkpoints.restore(self.model, self.resume_from)
            self.step = self.checkpoints.position(self.resume_from)["step"]
            self.resume_from = None

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        # The last batch's checkpoint is the epoch's, written when validation is done.
        if self.step % self.every == 0 and self.step < self.steps:
            self._save(self.epoch, self.step)

    def on_epoch_end(self, epoch, logs=None):
        self._save(epoch + 1, 0)

    def _save(self, epoch, step):
        self.checkpoints.save(self.model, epoch=epoch, step=step, steps=self.steps)
