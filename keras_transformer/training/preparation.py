"""What a run needs before its first update: a directory, a vocabulary, batches, a model."""

import dataclasses
from pathlib import Path

import keras

from keras_transformer.config import RunConfig
from keras_transformer.config_file import read_config, to_tables
from keras_transformer.data.batches import Batches
from keras_transformer.data.corpus import read_pairs
from keras_transformer.errors import InputError
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.objective import Objective
from keras_transformer.training.schedule import WarmupSchedule

# What may differ between a run and its resumption: nothing that the updates so far depend on. How
# it ends, with or without a cool-down, may be decided at the end.
RESUMABLE = {
    f"training.{key}"
    for key in (
        "epochs", "max_minutes", "cooldown_epochs", "checkpoint_steps", "keep_checkpoints",
        "average_checkpoints", "bleu_epochs", "bleu_pairs", "patience", "sample_lines",
    )
}  # fmt: skip


def check_run_dir(config, run_dir, resume):
    """Refuses a directory that is in use, or holds a run that would not go on as it began."""
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
    resumable = RESUMABLE
    if config.training.goes_by_bleu:  # scores of other pairs would be compared
        resumable = RESUMABLE - {"training.bleu_pairs"}
    for table, fields in to_tables(config).items():
        for key in fields.keys() | before[table].keys():
            was, now = before[table].get(key), fields.get(key)
            matters = table != "decoding" and f"{table}.{key}" not in resumable
            if was != now and matters:
                raise InputError(
                    f"{run_dir}: this run has {table}.{key}={was!r}, but the config says {now!r}. "
                    "A run goes on as it began; choose another --run-dir."
                )


def find_tokenizer(config, run_dir, say):
    """The vocabulary of the run, of the one it starts from, or a new one."""
    files = config.data.files("train")
    if not files:
        raise InputError("No training data: give data.train, or data.train_source and _target.")
    pairs = sum(1 for _ in read_pairs(files))  # a fault in the files is found here
    if (run_dir / "tokenizer.model").exists():
        return Tokenizer.load(run_dir / "tokenizer.model")
    if config.training.start_from:
        start = Path(config.training.start_from) / "tokenizer.model"
        if not start.exists():
            raise InputError(f"training.start_from: {start} is not there. Name a run's directory.")
        kind = read_config(start.with_name("config.toml")).tokenizer.kind
        if kind != config.tokenizer.kind:  # which decides what else a config may say
            raise InputError(
                f"training.start_from: its vocabulary is a {kind} one. Set tokenizer.kind={kind!r}."
            )
        return Tokenizer.load(start)
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


def make_batches(config, tokenizer, say):
    """The batches of the training and of the validation data; None where there is none."""
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
        regularized=config.methods.regularized,
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
    if train.unaligned:
        say(
            f"alignments left out: those of {train.unaligned:,} pairs that the tokenizer splits "
            "into other words than blanks do"
        )
    return train, validation


def with_vocabulary(config, tokenizer):
    """The config with the size of the vocabulary that was learned."""
    model = dataclasses.replace(config.model, vocabulary_size=tokenizer.vocabulary_size)
    return dataclasses.replace(config, model=model)


def find_position(checkpoints, last, batches):
    """The epoch, the batch in it that a run stands at, and how many seconds it has trained."""
    if last is None:
        return 0, 0, 0.0
    position = checkpoints.position(last)
    if position["steps"] != batches.steps:
        raise InputError(
            f"{last}: an epoch had {position['steps']} batches when this was written and has "
            f"{batches.steps} now: the training data has changed. Train into another run directory."
        )
    return position["epoch"], position["step"], position["seconds"]


def compile_objective(config: RunConfig, schedule: WarmupSchedule | None = None) -> Objective:
    """The model of a run in its objective, compiled for `fit`; by the config's schedule if none."""
    training = config.training
    try:
        model = Transformer(config.model, dtype=training.precision)
        objective = Objective(
            model, training.label_smoothing, config.methods, training.parallel_parts
        )
    except (TypeError, ValueError) as error:  # such as an option that a head's mechanism has not
        reason = " ".join(str(error).split())
        raise InputError(f"The config's [model] cannot be made: {reason}") from None
    optimizer = make_optimizer(training, schedule or make_schedule(config))
    objective.compile(optimizer, jit_compile=training.jit_compile)
    # Its variables, which the first update would make: a checkpoint fills them before that.
    optimizer.build(model.trainable_variables)
    return objective


def make_optimizer(training, schedule):
    """Adam, or Muon by the same schedule: its updates are as large (Liu et al. 2025).

    Muon is for the matrices that the layers of the encoder and decoder multiply with.
    """
    several = training.accumulate_batches > 1
    options = dict(
        epsilon=training.epsilon,
        global_clipnorm=training.clip_norm or None,
        gradient_accumulation_steps=training.accumulate_batches if several else None,
        use_ema=training.final_weights == "ema",
        ema_momentum=training.ema_momentum,
    )
    betas = training.beta_1, training.beta_2
    if training.optimizer == "adam":
        return keras.optimizers.Adam(schedule, *betas, **options)
    return keras.optimizers.Muon(
        schedule, *betas, adam_weight_decay=None, weight_decay=None,
        exclude_layers=[r"^(?!.*(encoder|decoder)/layer_.*/kernel$)"], **options,
    )  # fmt: skip


def make_schedule(config: RunConfig, batches: int | None = None) -> WarmupSchedule:
    """The learning rate of a run, by batches: Keras counts those, even where several are an update.

    Args:
        config: of the run.
        batches: how many an epoch has, which a cool-down has to know.
    """
    training, cooldown = config.training, {}
    if training.cooldown_epochs:
        cooldown = dict(
            cooldown_steps=training.cooldown_epochs * batches,
            total_steps=training.epochs * batches,
        )
    peak = training.peak_learning_rate
    if peak is None:
        peak = WarmupSchedule.of_paper(
            config.model.d_model, training.warmup_steps
        ).peak_learning_rate
    return WarmupSchedule(peak, training.warmup_steps * training.accumulate_batches, **cooldown)
