"""The command `keras-transformer plot`."""

from pathlib import Path

from keras import ops

from keras_transformer.config_file import read_config
from keras_transformer.errors import InputError
from keras_transformer.generation.translate import Translator, suppressed_ids
from keras_transformer.generation.tree import beam_tree
from keras_transformer.layers.positions import LearnedPositions, SinusoidalPositions
from keras_transformer.plots import (
    plot_curves,
    plot_heads,
    plot_positions,
    plot_schedule,
    plot_tree,
)
from keras_transformer.plots.attention import KINDS
from keras_transformer.plots.file import check_path
from keras_transformer.plots.tree import STEPS, WIDTH
from keras_transformer.text.tokenizer import END
from keras_transformer.training.checkpoint import Checkpoints
from keras_transformer.training.log import read_log
from keras_transformer.training.preparation import make_schedule
from keras_transformer.training.run import load_run

WARMUPS = 10  # that are drawn of a schedule whose training has no known length


def add_pictures(command, add_models, load) -> None:
    """Adds a command for each kind of picture.

    Args:
        command: the parser of `plot`.
        add_models: gives a parser the arguments for runs and how they decode.
        load: called with what was parsed; returns models, tokenizer and how to decode.
    """
    pictures = command.add_subparsers(required=True, metavar="PICTURE")

    def add(name, run, what):
        picture = pictures.add_parser(name, help=what, description=what)
        picture.set_defaults(run=run, load=load)
        picture.add_argument("--output", metavar="FILE", help="a .png or .svg file")
        return picture

    picture = add("attention", _attention, "what every head of every layer looks at")
    add_models(picture, "a run", several=False)
    picture.add_argument("--source", required=True, metavar="TEXT", help="what the model reads")
    picture.add_argument(
        "--target", metavar="TEXT", help="what it writes; by default its own translation"
    )
    picture.add_argument(
        "--kind", default="cross", choices=[*KINDS, "all"],
        help="of attention: between decoder and encoder, self-attention of one of them, or all, "
        "each in a file of its own (default: %(default)s)",
    )  # fmt: skip
    picture.add_argument("--layer", type=int, metavar="N", help="only this one, counted from 1")
    picture.add_argument("--head", type=int, metavar="N", help="likewise")

    picture = add("positions", _positions, "position encodings")
    picture.add_argument("run_dir", nargs="?", metavar="RUN", help="a run, to draw its own")
    picture.add_argument("--length", type=int, default=50, help="default: %(default)s")
    picture.add_argument(
        "--d-model", type=int, default=128, help="of sinusoids without a run (default: %(default)s)"
    )

    picture = add("schedule", _schedule, "the learning rate by update")
    picture.add_argument("config", metavar="CONFIG.toml|RUN")
    picture.add_argument("overrides", nargs="*", metavar="TABLE.KEY=VALUE")
    picture.add_argument(
        "--batches", type=int, metavar="N", help="of an epoch; a run that has begun knows it"
    )

    picture = add("curves", _curves, "loss, accuracy and BLEU by epoch")
    picture.add_argument("run_dir", metavar="RUN")

    picture = add("beam", _beam, "the tree of all hypotheses of a beam search")
    add_models(picture, "a run")
    picture.add_argument("--source", required=True, metavar="TEXT", help="what is translated")
    picture.add_argument(
        "--steps", type=int, default=STEPS, help="drawn at most (default: %(default)s)"
    )
    picture.add_argument(
        "--width", type=int, default=WIDTH,
        help="hypotheses of each step, drawn at most (default: %(default)s)",
    )  # fmt: skip


def _attention(parsed):
    kinds = list(KINDS) if parsed.kind == "all" else [parsed.kind]
    paths = {kind: _path(parsed, parsed.run_dir, f"attention-{kind}") for kind in kinds}
    if parsed.output and len(kinds) > 1:
        whole = Path(parsed.output)
        paths = {kind: whole.with_stem(f"{whole.stem}-{kind}") for kind in kinds}
    _check_source(parsed.source)
    (model,), tokenizer, decoding = parsed.load(parsed)
    target = parsed.target
    if target is None:
        (target,) = Translator(model, tokenizer, decoding)([parsed.source])
    for kind, path in paths.items():
        plot_heads(path, model, tokenizer, parsed.source, target, kind, parsed.layer, parsed.head)
        print(path)


def _positions(parsed):
    path = _path(parsed, parsed.run_dir, "positions")
    for name in ("length", "d_model"):
        if getattr(parsed, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} {getattr(parsed, name)}: at least 1.")
    layer, size = SinusoidalPositions(), parsed.d_model
    if parsed.run_dir:
        model, _ = load_run(parsed.run_dir)
        layer, size = model.source_positions, model.config.d_model
        if layer is None:
            raise InputError(
                f"{parsed.run_dir}: its positions turn queries and keys; there are no encodings "
                "to draw."
            )
    elif size % 2:
        raise InputError(f"--d-model {size}: sines and cosines come in pairs: give an even number.")
    length = parsed.length
    if isinstance(layer, LearnedPositions):
        length = min(length, layer.max_length)
    kind = "learned" if isinstance(layer, LearnedPositions) else "sinusoidal"
    encodings = ops.convert_to_numpy(layer(ops.zeros((1, length, size))))[0].astype("float32")
    plot_positions(path, encodings, f"{kind} positions: {length} of size {size}")
    print(path)


def _schedule(parsed):
    run_dir = Path(parsed.config) if Path(parsed.config).is_dir() else None
    path = _path(parsed, run_dir, "schedule")
    config = read_config(run_dir / "config.toml" if run_dir else parsed.config, parsed.overrides)
    training, batches = config.training, parsed.batches
    if batches is not None and batches < 1:
        raise InputError(f"--batches {batches}: at least 1.")
    if batches is None and run_dir and (last := Checkpoints(run_dir / "checkpoints").last()):
        batches = Checkpoints(run_dir / "checkpoints").position(last)["steps"]
    if batches is None and training.cooldown_epochs:
        raise InputError(
            f"{parsed.config}: when the cool-down begins depends on the data. Say with --batches "
            "how many batches an epoch has; a training begins with telling it."
        )
    steps = WARMUPS * training.warmup_steps
    if batches is not None:
        steps = max(round(training.epochs * batches / training.accumulate_batches), 1)
    title = f"{training.epochs} epochs" if batches else f"{WARMUPS} times the warm-up"
    schedule = make_schedule(config, batches)
    plot_schedule(
        path,
        lambda updates: schedule((updates + 1) * training.accumulate_batches - 1),
        steps,
        f"{title}: {steps:,} updates",
    )
    print(path)


def _curves(parsed):
    path = _path(parsed, parsed.run_dir, "curves")
    epochs = read_log(Path(parsed.run_dir) / "log.csv")
    if not epochs:
        raise InputError(f"{parsed.run_dir}: no log.csv with an epoch yet. Train it first.")
    plot_curves(path, epochs)
    print(path)


def _beam(parsed):
    path = _path(parsed, parsed.run_dir, "beam")
    _check_source(parsed.source)
    for name in ("steps", "width"):
        if getattr(parsed, name) < 1:
            raise InputError(f"--{name} {getattr(parsed, name)}: at least 1.")
    models, tokenizer, decoding = parsed.load(parsed)
    if decoding.temperature > 0:
        raise InputError("decoding.temperature draws instead of searching: set it to 0 for a tree.")
    translator = Translator(models, tokenizer, decoding)
    words = translator.unknown.find([parsed.source])
    ids = translator.unknown.encode([parsed.source], words)[0][: translator.max_length - 1]
    if not ids:
        raise InputError(f"--source {parsed.source!r}: there is nothing in it to translate.")
    tree = beam_tree(
        translator.model,
        ops.array([[*ids, END]], "int32"),
        decoding,
        suppressed_ids(tokenizer, decoding),
    )
    plot_tree(
        path,
        tree,
        lambda one: translator.unknown.pieces([one], words[0])[0],
        parsed.steps,
        parsed.width,
    )
    print(path)


def _path(parsed, run_dir, name):
    """Where a picture goes: as it was asked for, else into the run, else here."""
    path = Path(parsed.output) if parsed.output else Path(run_dir or "", f"{name}.png")
    if not parsed.output and run_dir and not Path(run_dir).is_dir():
        raise InputError(f"{run_dir}: there is no such run directory. Train one first.")
    check_path(path)
    return path


def _check_source(source):
    if not source.strip():
        raise InputError("--source is empty: give a sentence.")
