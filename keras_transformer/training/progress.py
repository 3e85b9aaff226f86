"""How far a run is, how fast it goes and when it will be done."""

import math
import sys
import time

import keras

# Shown of an epoch, in this order, where they are there.
MEASURES = {
    "loss": "loss {:.3f}",
    "accuracy": "accuracy {:.1%}",
    "val_loss": "validation loss {:.3f}",
    "val_accuracy": "accuracy {:.1%}",
    "val_bleu": "BLEU {:.2f}",
}


class Progress(keras.callbacks.Callback):
    """One line while an epoch goes on, and one when it is over.

    Args:
        epochs: how many there are.
        steps: batches in an epoch.
        tokens: target tokens in an epoch.
        say: called with the lines of finished epochs.
        every: seconds between two looks at a running epoch; by default half a second on a terminal,
            where they share a line, and a minute elsewhere.
    """

    def __init__(self, epochs: int, steps: int, tokens: int, say=print, every: float | None = None):
        super().__init__()
        self.epochs = epochs
        self.steps = steps
        self.tokens = tokens
        self.say = say
        self.on_terminal = say is print and sys.stdout.isatty()
        self.every = every or (0.5 if self.on_terminal else 60)

    def on_train_begin(self, logs=None):
        # Batches of this call of `fit`: those of an earlier one may have been of another speed.
        self.began, self.done = None, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self.epoch_began = self.shown = time.monotonic()
        self.step = self.steps - self.params["steps"]  # not 0 in an epoch that was broken off

    def on_train_batch_end(self, batch, logs=None):
        now = time.monotonic()
        self.step += 1
        if self.began is None:  # the first batch is mostly compilation: it says nothing of the rest
            self.began = now
            return
        self.done += 1
        if now - self.shown >= self.every:
            self.shown = now
            self._show(
                f"epoch {self.epoch + 1}/{self.epochs}  batch {self.step}/{self.steps}"
                f"  loss {float(logs['loss']):.3f}  {self._speed(now)}"
            )

    def on_test_begin(self, logs=None):
        self.clear()  # the line that others are about to write to

    def on_epoch_end(self, epoch, logs=None):
        now = time.monotonic()
        measures = [
            text.format(logs[name])
            for name, text in MEASURES.items()
            if name in logs and not (name == "val_bleu" and math.isnan(logs[name]))
        ]
        seconds = now - self.epoch_began
        self.clear()
        self.say(
            f"epoch {epoch + 1}/{self.epochs}: {', '.join(measures)}; "
            f"{duration(seconds)}, {self._speed(now)}"
        )

    def _speed(self, now):
        left = (self.epochs - self.epoch) * self.steps - self.step
        if not left:
            return "done"
        if not self.done:
            return "no speed yet"
        speed = self.done / (now - self.began)  # batches a second, validation included
        tokens = speed * self.tokens / self.steps
        return f"{tokens:,.0f} tokens/s, ETA {duration(left / speed)}"

    def _show(self, line):
        if self.on_terminal:
            print(f"\r{line}\x1b[K", end="", flush=True)
        else:
            self.say(line)

    def clear(self):
        """Takes the line of a running epoch off the terminal."""
        if self.on_terminal:
            print("\r\x1b[K", end="", flush=True)


def duration(seconds: float) -> str:
    """A time to read.

    Example:

    >>> from keras_transformer.training.progress import duration
    >>> duration(59), duration(605), duration(7300)
    ('59 s', '10 min 5 s', '2 h 1 min')
    """
    seconds = round(seconds)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
