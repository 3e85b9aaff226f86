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
from itertools import islice
from pathlib import Path

import keras

from keras_transformer.config import RunConfig
from keras_transformer.config_file import read_config, to_tables, write_config
from keras_transformer.data.batches import Batches
from keras_transformer.data.corpus import read_pairs
from keras_transformer.errors import InputError
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.callbacks import Checkpointing, Curves, asked_to_stop
from keras_transformer.training.checkpoint import Checkpoints, write_atomically
from keras_transformer.training.log import Log, forget_epochs, read_log
from keras_transformer.training.loss import LabelSmoothedCrossEntropy
from keras_transformer.training.memory import keep_freed_memory
from keras_transformer.training.metrics import Perplexity, TokenAccuracy
from keras_transformer.training.objective import Objective
from keras_transformer.training.progress import Progress
from keras_transformer.training.schedule import WarmupSchedule
from keras_transformer.training.validation import Validation, is_stale

# What may differ between a run and its resumption: nothing that the updates so far depend on. How
# it ends, with or without a cool-down, may be decided at the end.
RESUMABLE = {
    f"training.{key}"
    for key in (
        "epochs", "cooldown_epochs", "checkpoint_steps", "keep_checkpoints", "average_checkpoints",
        "bleu_epochs", "bleu_pairs", "patience", "sample_lines",
    )
}  # fmt: skip


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
    _check_run_dir(config, run_dir, resume)
    keep_freed_memory()
    keras.utils.set_random_seed(config.training.seed)
    # All that can be wrong with the input is found before the first file is written.
    tokenizer = _tokenizer(config, run_dir, say)
    batches, validation = _batches(config, tokenizer, say)
    config = _with_vocabulary(config, tokenizer)
    objective = compile_objective(config, batches.steps)
    model = objective.transformer
    checkpoints = Checkpoints(run_dir / "checkpoints", _keep(config.training))
    last = checkpoints.last()
    epoch, step = _position(checkpoints, last, batches)

    run_dir.mkdir(parents=True, exist_ok=True)
    # The config first: it is what makes a directory a run that can be resumed.
    write_atomically(run_dir / "config.toml", lambda path: write_config(config, path))
    write_atomically(run_dir / "tokenizer.model", tokenizer.save)
    say(f"model: {model.count_params():,} weights; run directory: {run_dir}")
    forget_epochs(run_dir / "log.csv", first=epoch)
    bleus = [row["val_bleu"] for row in read_log(run_dir / "log.csv")]
    if epoch >= config.training.epochs or is_stale(bleus, config.training.patience):
        say("training is done already")
    else:
        if last:
            say(f"going on from epoch {epoch + 1}, batch {step + 1} of {batches.steps}")
        # From now on it is not what the run has learned.
        (run_dir / "model.keras").unlink(missing_ok=True)
        beside = _callbacks(config, run_dir, tokenizer, batches, checkpoints, bleus, say)
        with asked_to_stop() as stop:
            # Last, so that a checkpoint of an epoch finds the epoch's line written.
            checkpointing = Checkpointing(
                checkpoints, config.training.checkpoint_steps, batches.steps, stop
            )
            _fit(objective, batches, validation, [*beside, checkpointing], epoch, step, config)
    _finish(objective, checkpoints, config, say)
    write_atomically(run_dir / "model.keras", model.save)
    return model


def _keep(training):
    """How many checkpoints are needed."""
    averaged = training.average_checkpoints if training.final_weights == "average" else 1
    return max(training.keep_checkpoints, averaged)


def _callbacks(config, run_dir, tokenizer, batches, checkpoints, bleus, say):
    """What watches a run, in the order that they depend on each other."""
    training, log = config.training, run_dir / "log.csv"
    callbacks = []
    files = config.data.files("validation")
    if files and training.bleu_epochs:
        # First, because it adds to what the others log.
        pairs = list(islice(read_pairs(files), training.bleu_pairs))
        callbacks.append(Validation(pairs, tokenizer, training, checkpoints, bleus, say))
    if training.final_weights == "ema":
        callbacks.append(keras.callbacks.SwapEMAWeights())  # while validating
    return [
        *callbacks,
        Progress(training.epochs, batches.steps, batches.tokens, say),
        Log(log),
        Curves(log, run_dir / "curves.png"),
        keras.callbacks.TensorBoard(run_dir / "tensorboard", write_graph=False),
    ]


def _fit(objective, batches, validation, callbacks, epoch, step, config):
    """Trains from batch `step` of `epoch` on, until all epochs are done."""
    epochs = config.training.epochs
    parts = [(epoch, 0, epochs)]
    if step:  # the rest of a broken-off epoch has fewer batches than the epochs after it
        parts = [(epoch, step, epoch + 1), (epoch + 1, 0, epochs)]
    for first, step, until in parts:
        if first < until:
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
            if objective.stop_training:
                return


def _finish(objective, checkpoints, config, say):
    """Gives the model the weights that the config asks for."""
    model, training = objective.transformer, config.training
    # Whatever `fit` has left in their place.
    checkpoints.restore(objective, checkpoints.last())
    if training.final_weights == "ema":
        objective.optimizer.finalize_variable_values(model.trainable_variables)
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


def compile_objective(config: RunConfig, batches: int | None = None) -> Objective:
    """The model of a run in its objective, compiled for `fit`.

    Args:
        config: of the run.
        batches: how many an epoch has, which a cool-down has to know.
    """
    training = config.training
    try:
        model = Transformer(config.model, dtype=training.precision)
    except (TypeError, ValueError) as error:  # such as an option that a head's mechanism has not
        reason = " ".join(str(error).split())
        raise InputError(f"The config's [model] cannot be made: {reason}") from None
    schedule = _schedule(config, batches)
    several = training.accumulate_batches > 1
    optimizer = keras.optimizers.Adam(
        schedule,
        beta_1=training.beta_1,
        beta_2=training.beta_2,
        epsilon=training.epsilon,
        global_clipnorm=training.clip_norm or None,
        gradient_accumulation_steps=training.accumulate_batches if several else None,
        use_ema=training.final_weights == "ema",
        ema_momentum=training.ema_momentum,
    )
    objective = Objective(model, training.label_smoothing, config.methods)
    objective.compile(optimizer, jit_compile=training.jit_compile)
    # Its variables, which the first update would make: a checkpoint fills them before that.
    optimizer.build(model.trainable_variables)
    return objective


def _schedule(config, batches):
    training, cooldown = config.training, {}
    if training.cooldown_epochs:
        updates = batches / training.accumulate_batches  # of an epoch
        cooldown = dict(
            cooldown_steps=round(training.cooldown_epochs * updates),
            total_steps=round(training.epochs * updates),
        )
    if training.peak_learning_rate is None:
        return WarmupSchedule.of_paper(config.model.d_model, training.warmup_steps, **cooldown)
    return WarmupSchedule(training.peak_learning_rate, training.warmup_steps, **cooldown)


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
    config = _with_vocabulary(read_config(run_dir / "config.toml"), tokenizer)
    model = Transformer(config.model, dtype=config.training.precision)
    checkpoints.restore_weights(model, checkpoints.last())
    return model, tokenizer


def _check_run_dir(config, run_dir, resume):
    if run_dir.exists() and not run_dir.is_dir():
        raise InputError(f"{run_dir}: this is a file; a run needs a directory.")
    if not (run_dir / "config.toml").exists():
        # A name with a dot is what a kill leaves of a file that was being written.
        if run_dir.exists() and any(path.name[0] != "." for path in run_dir.iterdir()):
            raise InputError(f"{run_dir}: not empty and not a run. Choose another --run-dir.")
        return
    if not resume:
        raise InputError(
            f"{run_dir}: holds a run already. Add --resume to go on with it, or choose another "
            "--run-dir."
        )
    before = to_tables(read_config(run_dir / "config.toml"))
    for table, fields in to_tables(config).items():
        for key in fields.keys() | before[table].keys():
            was, now = before[table].get(key), fields.get(key)
            matters = table != "decoding" and f"{table}.{key}" not in RESUMABLE
            if was != now and matters:
                raise InputError(
                    f"{run_dir}: this run has {table}.{key}={was!r}, but the config says {now!r}. "
                    "A run goes on as it began; choose another --run-dir."
                )


def _tokenizer(config, run_dir, say):
    files = config.data.files("train")
    if not files:
        raise InputError("No training data: give data.train, or data.train_source and _target.")
    pairs = sum(1 for _ in read_pairs(files))  # a fault in the files is found here
    if (run_dir / "tokenizer.model").exists():
        return Tokenizer.load(run_dir / "tokenizer.model")
    learning = config.tokenizer
    say(f"learning a {learning.kind} vocabulary from {pairs:,} pairs")
    try:
        return Tokenizer.learn(
            (line for pair in read_pairs(files) for line in pair),
            learning.vocabulary_size,
            learning.kind,
            learning.split_digits,
            learning.normalization,
        )
    except InputError as error:
        raise InputError(f"{' and '.join(files)}: {error}") from None


def _batches(config, tokenizer, say):
    data = config.data
    sizes = dict(
        tokens_per_batch=data.tokens_per_batch,
        max_tokens=data.max_tokens,
        copy_words=config.model.copy_words,
    )
    train = Batches(
        data.files("train"),
        tokenizer,
        seed=config.training.seed,
        shuffle_pairs=data.shuffle_pairs,
        regularization=config.methods.subword_regularization,
        alignments=data.train_alignments if config.guided_by_alignments else None,
        **sizes,
    )
    validation = None
    if data.files("validation"):
        validation = Batches(data.files("validation"), tokenizer, **sizes)
    say(f"training: {train.pairs:,} pairs in {train.steps:,} batches an epoch")
    if train.too_long or train.empty:
        say(
            f"left out: {train.too_long:,} pairs of more than {data.max_tokens} tokens, "
            f"{train.empty:,} with an empty side"
        )
    return train, validation


def _with_vocabulary(config, tokenizer):
    model = dataclasses.replace(config.model, vocabulary_size=tokenizer.vocabulary_size)
    return dataclasses.replace(config, model=model)


def _position(checkpoints, last, batches):
    """The epoch, and the batch in it, that a run stands at."""
    if last is None:
        return 0, 0
    position = checkpoints.position(last)
    if position["steps"] != batches.steps:
        raise InputError(
            f"{last}: an epoch had {position['steps']} batches when this was written and has "
            f"{batches.steps} now: the training data has changed. Train into another run directory."
        )
    return position["epoch"], position["step"]
