"""What a run does beside the updates of `model.fit`."""

import contextlib
import math
import signal
import statistics
import time
from pathlib import Path

import keras

from keras_transformer.errors import InputError
from keras_transformer.plots import plot_curves
from keras_transformer.training.checkpoint import Checkpoints
from keras_transformer.training.log import read_log
from keras_transformer.training.progress import Progress
from keras_transformer.training.schedule import WarmupSchedule


class Stopped(Exception):  # noqa: N818 - nothing is wrong
    """A run was asked to stop, and can be gone on with."""


@contextlib.contextmanager
def asked_to_stop():
    """Within it, Ctrl-C and SIGTERM ask to stop; a second Ctrl-C does not ask.

    Yields a function that returns the number of the signal that came, or None.
    """
    came = []

    def ask(number, frame):
        came.append(number)
        signal.signal(number, before[number])

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError):  # only the main thread may be asked
            before[number] = signal.signal(number, ask)
    try:
        yield lambda: came[0] if came else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Checkpointing(keras.callbacks.Callback):
    """Writes checkpoints while training, and begins from the last one there is.

    Args:
        checkpoints: where they go.
        every: batches between two; there is one after each epoch as well.
        steps: batches in an epoch.
        began: the time of `time.monotonic` when training began; checkpoints hold how long ago.
        stop: called after each batch; where it returns anything but None, a checkpoint is written
            and `Stopped` is raised.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        every: int,
        steps: int,
        began: float,
        stop=lambda: None,
    ):
        super().__init__()
        self.checkpoints = checkpoints
        self.every = every
        self.steps = steps
        self.began = began
        self.stop = stop

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch, self.step = epoch, 0
        if self.fresh and (last := self.checkpoints.last()):
            # Not earlier: `fit` makes the metrics' variables and clears them before this call.
            self.checkpoints.restore(self.model, last)
            position = self.checkpoints.position(last)
            self.step = position["step"]
            self.extra = None if position["due"] else last
            if self.step == 0:  # they are of the epoch before
                self.model.reset_metrics()
        self.fresh = False

    def on_train_begin(self, logs=None):
        self.fresh, self.extra = True, None

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.step == self.steps:
            return  # the last batch's checkpoint is the epoch's, written when validation is done
        stopping = self.stop() is not None
        due = self.step % self.every == 0
        if stopping or due:
            self._save(self.epoch, self.step, logs, due=due)
        if stopping:
            raise Stopped

    def on_epoch_end(self, epoch, logs=None):
        self._save(epoch + 1, 0, logs)
        if self.stop() is not None and epoch + 1 < self.params["epochs"]:
            raise Stopped

    def _save(self, epoch, step, logs, due=True):
        if not math.isfinite(logs["loss"]):
            raise InputError(
                f"The loss of epoch {self.epoch + 1} is {logs['loss']}: training has diverged. "
                "Lower training.peak_learning_rate, or set training.clip_norm=1, and train into "
                "another run directory."
            )
        position = dict(epoch=epoch, step=step, steps=self.steps, due=due)
        position["seconds"] = time.monotonic() - self.began
        self.checkpoints.save(self.model, epoch * self.steps + step, **position)
        # Only to go on from: an average is to be that of a run that was never stopped.
        if self.extra is not None:
            self.extra.unlink(missing_ok=True)
        self.extra = None
        if due:
            self.checkpoints.drop_old()


class Curves(keras.callbacks.Callback):
    """Draws the curves of a log after each epoch.

    Args:
        log: the CSV file.
        path: where the picture goes.
    """

    def __init__(self, log: Path, path: Path):
        super().__init__()
        self.log = log
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        plot_curves(self.path, read_log(self.log))


class TimeLimit(keras.callbacks.Callback):
    """Has a training done in time, its cool-down included.

    After each epoch it looks anew how many epochs there is time for.

    Args:
        minutes: of training, from `began` on.
        progress: what tells the number of epochs.
        schedule: the learning rate, whose cool-down ends with the last of them.
        began: the time of `time.monotonic` when training began; of a run that goes on, so long
            before now as it has trained already.
        done: how many epochs it has done already, the part of a broken-off one included.
        say: called with a line for people.
    """

    def __init__(
        self,
        minutes: float,
        progress: Progress,
        schedule: WarmupSchedule,
        began: float,
        done: float = 0.0,
        say=print,
    ):
        super().__init__()
        self.seconds = 60 * minutes
        self.progress = progress
        self.schedule = schedule
        self.began = began
        self.say = say
        self.epochs = progress.epochs
        self.total_steps = schedule.cooldown_steps and int(schedule.total_steps)
        self.recent = []  # what the last epochs took
        if done >= 1:  # as a run that goes on unbroken has planned
            self._plan(done)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch_began = time.monotonic()

    def on_epoch_end(self, epoch, logs=None):
        self.recent = [*self.recent, time.monotonic() - self.epoch_began][-3:]
        self._plan(epoch + 1)
        if self.is_up(epoch + 1):
            minutes = self.seconds / 60
            self.say(f"no time for another epoch in {minutes:g} minutes: training stops")
            self.model.stop_training = True

    def is_up(self, done: int) -> bool:
        """Whether so many epochs are all there was time for."""
        return self.progress.epochs <= done < self.epochs

    def _plan(self, done):
        elapsed = time.monotonic() - self.began
        # R-Drop, begun late, makes epochs longer; but a single one that was slow says nothing.
        one = max(elapsed / done, statistics.median(self.recent or [0.0]))
        fit = math.floor(done + (self.seconds - elapsed) / one)
        epochs = min(self.epochs, max(fit, math.ceil(done)))  # what has begun is finished
        self.progress.epochs = epochs
        if self.total_steps:
            self.schedule.total_steps.assign(round(self.total_steps * epochs / self.epochs))
