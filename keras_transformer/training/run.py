"""A training run and its directory.

RUN/config.toml       what the run was asked to do
RUN/tokenizer.model   the vocabulary, a sentencepiece model
RUN/checkpoints/      what a killed run goes on from
RUN/log.csv           losses, metrics and BLEU, a line an epoch
RUN/curves.png        the same as a picture
RUN/tensorboard/      the same for TensorBoard
RUN/model.keras       the trained model, for keras.saving.load_model
"""

import dataclasses
import time
from itertools import islice, pairwise
from pathlib import Path

import keras

from keras_transformer.config import RunConfig
from keras_transformer.config_file import read_config, write_config
from keras_transformer.data.corpus import read_pairs
from keras_transformer.errors import InputError
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.callbacks import (
    Checkpointing,
    Curves,
    TimeLimit,
    asked_to_stop,
)
from keras_transformer.training.checkpoint import Checkpoints, write_atomically
from keras_transformer.training.log import Log, forget_epochs, read_log
from keras_transformer.training.loss import LabelSmoothedCrossEntropy
from keras_transformer.training.memory import keep_freed_memory
from keras_transformer.training.metrics import Perplexity, TokenAccuracy
from keras_transformer.training.preparation import (
    check_run_dir,
    compile_objective,
    find_position,
    find_tokenizer,
    make_batches,
    make_schedule,
    with_vocabulary,
)
from keras_transformer.training.progress import Progress
from keras_transformer.training.validation import Validation, is_stale


def train(config: RunConfig, run_dir: str | Path, resume: bool = False, say=print) -> Transformer:
    """Trains a Transformer on text files and leaves everything that is needed of it in `run_dir`.

    Args:
        config: what to train, on what, and how.
        run_dir: the run's directory; made, or with `resume` gone on with.
        resume: whether to go on from the last checkpoint in `run_dir`, if there is one.
        say: called with lines that tell what is going on.

    Returns:
        The trained model, which is also in `run_dir/model.keras`.

    Raises:
        Stopped: after Ctrl-C or SIGTERM; a checkpoint is written, and `resume` goes on from there.
    """
    run_dir = Path(run_dir)
    check_run_dir(config, run_dir, resume)
    keep_freed_memory()
    keras.utils.set_random_seed(config.training.seed)
    # All that can be wrong with the input is found before the first file is written.
    tokenizer = find_tokenizer(config, run_dir, say)
    batches, validation = make_batches(config, tokenizer, say)
    config = with_vocabulary(config, tokenizer)
    schedule = make_schedule(config, batches.steps)
    objective = compile_objective(config, schedule)
    model = objective.transformer
    checkpoints = Checkpoints(run_dir / "checkpoints", _keep(config.training))
    last = checkpoints.last()
    epoch, step, seconds = find_position(checkpoints, last, batches)
    began = time.monotonic() - seconds
    if last is None and config.training.start_from:
        _start_from(config.training.start_from, model)

    run_dir.mkdir(parents=True, exist_ok=True)
    # The config first: it is what makes a directory a run that can be resumed.
    write_atomically(run_dir / "config.toml", lambda path: write_config(config, path))
    write_atomically(run_dir / "tokenizer.model", tokenizer.save)
    say(f"model: {model.count_params():,} weights; run directory: {run_dir}")
    forget_epochs(run_dir / "log.csv", first=epoch)
    bleus = [row["val_bleu"] for row in read_log(run_dir / "log.csv")]
    progress = Progress(config.training.epochs, batches.steps, batches.tokens, say)
    limit = None
    if config.training.max_minutes:
        done = epoch + step / batches.steps
        limit = TimeLimit(config.training.max_minutes, progress, schedule, began, done, say)
    if (
        epoch >= config.training.epochs
        or (limit is not None and step == 0 and limit.is_up(epoch))
        or is_stale(bleus, config.training.patience)
    ):
        say("training is done already")
    else:
        if last:
            say(f"going on from epoch {epoch + 1}, batch {step + 1} of {batches.steps}")
        # From now on it is not what the run has learned.
        (run_dir / "model.keras").unlink(missing_ok=True)
        beside = _callbacks(config, run_dir, tokenizer, checkpoints, bleus, progress, limit, say)
        with asked_to_stop() as stop:
            # Last, so that a checkpoint of an epoch finds the epoch's line written.
            checkpointing = Checkpointing(
                checkpoints, config.training.checkpoint_steps, batches.steps, began, stop
            )
            _fit(objective, batches, validation, [*beside, checkpointing], epoch, step, config)
    _finish(objective, checkpoints, config, say)
    write_atomically(run_dir / "model.keras", model.save)
    return model


def _keep(training):
    """How many checkpoints are needed."""
    averaged = training.average_checkpoints if training.final_weights == "average" else 1
    return max(training.keep_checkpoints, averaged)


def _callbacks(config, run_dir, tokenizer, checkpoints, bleus, progress, limit, say):
    """What watches a run, in the order that they depend on each other."""
    training, log = config.training, run_dir / "log.csv"
    callbacks = []
    files = config.data.files("validation")
    if files and training.bleu_epochs:
        # First, because it adds to what the others log.
        pairs = list(islice(read_pairs(files), training.bleu_pairs))
        callbacks.append(Validation(pairs, tokenizer, training, progress, checkpoints, bleus, say))
    if training.final_weights == "ema":
        callbacks.append(keras.callbacks.SwapEMAWeights())  # while validating
    if limit is not None:
        callbacks.append(limit)
    return [
        *callbacks,
        progress,
        Log(log),
        Curves(log, run_dir / "curves.png"),
        keras.callbacks.TensorBoard(run_dir / "tensorboard", write_graph=False),
    ]


def _fit(objective, batches, validation, callbacks, epoch, step, config):
    """Trains from batch `step` of `epoch` on, until all epochs are done."""
    epochs, methods = config.training.epochs, config.methods
    # R-Drop is another training step, and the rest of a broken-off epoch has fewer batches than the
    # epochs after it.
    bounds = {epoch, epoch + 1 if step else epoch, methods.r_drop_after, epochs}
    for first, until in pairwise(sorted(bound for bound in bounds if epoch <= bound <= epochs)):
        late = first >= methods.r_drop_after
        objective.methods = methods if late else dataclasses.replace(methods, r_drop=0.0)
        objective.train_function = None
        objective.fit(
            with_labels(batches.stream(first, step)),
            steps_per_epoch=batches.steps - step,
            initial_epoch=first,
            epochs=until,
            validation_data=validation and with_labels(validation.epoch()),
            callbacks=callbacks,
            shuffle=False,  # the batches are shuffled already
            verbose=0,
        )
        step = 0
        if objective.stop_training:
            return


def _finish(objective, checkpoints, config, say):
    """Gives the model the weights that the config asks for."""
    model, training = objective.transformer, config.training
    # Whatever `fit` has left in their place.
    checkpoints.restore(objective, checkpoints.last())
    if training.final_weights == "ema":
        objective.optimizer.finalize_variable_values(model.trainable_variables)
    elif training.final_weights == "best" and not checkpoints.best.exists():
        say("the model: the last weights, because there was no time for BLEU")
    elif training.final_weights == "best":
        say("the model: the weights with the best BLEU")
        checkpoints.restore_weights(model, checkpoints.best)
    elif training.final_weights == "average":
        paths = checkpoints.average(model, training.average_checkpoints)
        say(f"the model: the average of {len(paths)} checkpoints, {paths[0].stem} to the last")
    # So that whoever loads the model can go on with `fit`.
    model.compile(
        objective.optimizer,
        LabelSmoothedCrossEntropy(training.label_smoothing),
        [TokenAccuracy(), Perplexity()],
    )


def with_labels(batches):
    """The batches of `Batches` with the labels among the inputs, where an `Objective` has them."""
    return batches.map(lambda inputs, labels: {**inputs, "labels": labels})


def _start_from(run_dir, model):
    """Gives the model the weights of another run's."""
    weights = load_run(run_dir)[0].get_weights()
    shapes = [tuple(weight.shape) for weight in model.weights]
    if [weight.shape for weight in weights] != shapes:
        raise InputError(
            f"training.start_from: {run_dir} has another model than this config describes. "
            f"Take [model] from {run_dir}/config.toml; dropout may differ."
        )
    model.set_weights(weights)


def load_run(run_dir: str | Path) -> tuple[Transformer, Tokenizer]:
    """The model and the tokenizer of a run; of one that has not finished, the last checkpoint's."""
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise InputError(f"{run_dir}: there is no such run directory. Train one first.")
    if not (run_dir / "config.toml").exists():
        raise InputError(f"{run_dir}: this is not a run directory: it has no config.toml.")
    tokenizer = Tokenizer.load(run_dir / "tokenizer.model")
    if (run_dir / "model.keras").exists():
        return keras.saving.load_model(run_dir / "model.keras"), tokenizer
    checkpoints = Checkpoints(run_dir / "checkpoints")
    if checkpoints.last() is None:
        raise InputError(f"{run_dir}: no checkpoint yet. Wait, or train with --resume.")
    config = with_vocabulary(read_config(run_dir / "config.toml"), tokenizer)
    model = Transformer(config.model, dtype=config.training.precision)
    checkpoints.restore_weights(model, checkpoints.last())
    return model, tokenizer
