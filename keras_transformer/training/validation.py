"""The validation data translated while training: BLEU, samples, the best epoch, when to stop."""

import math
from collections.abc import Sequence

import keras

from keras_transformer.config import DecodingConfig, TrainingConfig
from keras_transformer.evaluation import score
from keras_transformer.generation.translate import Translator
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.checkpoint import Checkpoints
from keras_transformer.training.progress import Progress


class Validation(keras.callbacks.Callback):
    """Translates the validation data and scores it, after each epoch or some of them.

    By greedy search, which takes seconds where beam search would take a minute. The score stands as
    `val_bleu` in the logs of the callbacks that follow; of epochs without one it is NaN.

    Args:
        pairs: sources and references.
        tokenizer: the model's.
        training: how often, and what depends on it.
        progress: which epoch is the last.
        checkpoints: where the best weights go.
        bleus: the scores of the epochs before, of a run that is gone on with.
        say: called with lines for people.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        tokenizer: Tokenizer,
        training: TrainingConfig,
        progress: Progress,
        checkpoints: Checkpoints,
        bleus: Sequence[float] = (),
        say=print,
    ):
        super().__init__()
        self.sources, self.references = map(list, zip(*pairs, strict=True))
        self.tokenizer = tokenizer
        self.training = training
        self.progress = progress
        self.checkpoints = checkpoints
        self.bleus = list(bleus)
        self.say = say
        self.translator = None

    def on_epoch_begin(self, epoch, logs=None):
        self.bleu = math.nan
        # The last epoch has one as well, for it might be the best; but not where it turns out only
        # when it ends that there is no time for another.
        every, last = self.training.bleu_epochs, self.progress.epochs
        self.due = (epoch + 1) % every == 0 or epoch + 1 == last

    def on_test_end(self, logs=None):
        # Not when the epoch ends: a moving average of the weights is in their place only now.
        if not self.due:
            return
        if self.translator is None:
            greedy = DecodingConfig(beams=1)
            self.translator = Translator(self.model.transformer, self.tokenizer, greedy)
        translations = self.translator(self.sources)
        self.bleu = score(translations, self.references, self.training.bleu_tokenize).bleu
        if not self.bleu <= best_of(self.bleus):
            self.checkpoints.save_best(self.model.transformer)
        lines = zip(self.sources, translations, self.references, strict=True)
        for source, translation, reference in list(lines)[: self.training.sample_lines]:
            self.say(f"  source: {source}\n  model:  {translation}\n  people: {reference}")

    def on_epoch_end(self, epoch, logs=None):
        logs["val_bleu"] = self.bleu
        self.bleus.append(self.bleu)
        if is_stale(self.bleus, self.training.patience):
            self.say(f"no better BLEU in {self.training.patience} epochs: training stops")
            self.model.stop_training = True


def best_of(bleus: Sequence[float]) -> float:
    """The best score there is; minus infinity where there is none."""
    return max((bleu for bleu in bleus if not math.isnan(bleu)), default=-math.inf)


def is_stale(bleus: Sequence[float], patience: int) -> bool:
    """Whether the last `patience` epochs had no better score than those before; 0 for never."""
    if not patience:
        return False
    best = best_of(bleus[:-patience])
    return best > -math.inf and best_of(bleus[-patience:]) <= best
