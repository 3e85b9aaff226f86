"""The command line: demo | train | translate | evaluate | export | distill | plot | serve."""

import argparse
import os
import shlex
import sys
from itertools import count, islice
from pathlib import Path

from keras_transformer_server.__main__ import run as serve
from keras_transformer_server.settings import add_flags

from keras_transformer.config import BLEU_TOKENIZERS
from keras_transformer.config_file import read_config
from keras_transformer.data.corpus import decode_lines, read_lines, read_pairs
from keras_transformer.demo import demo
from keras_transformer.errors import InputError
from keras_transformer.evaluation import score
from keras_transformer.exporting.ctranslate2 import export_ctranslate2
from keras_transformer.exporting.exported import ExportedTranslator, is_exported
from keras_transformer.exporting.saved_model import export
from keras_transformer.generation.translate import Translator
from keras_transformer.plots_command import add_pictures
from keras_transformer.training.callbacks import Stopped
from keras_transformer.training.checkpoint import write_atomically
from keras_transformer.training.cores import share_cores
from keras_transformer.training.distillation import distill
from keras_transformer.training.run import load_run, train
from keras_transformer.version import VERSION

AT_ONCE = 1000  # lines that are translated before the first of them is out


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns 0, or 2 when something it was given is wrong."""
    parser = _parser()
    parsed, rest = parser.parse_known_args(arguments)
    # Before Python 3.13, argparse takes no overrides that stand behind an option.
    wrong = any(word.startswith("-") or "=" not in word for word in rest)
    if wrong or (rest and "overrides" not in parsed):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        parsed.overrides += rest
    try:
        return parsed.run(parsed) or 0
    except InputError as error:
        print(f"keras-transformer: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever reads the output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        print(f"keras-transformer: {error.filename}: {error.strerror}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except Stopped:
        print("stopped and saved; the same command goes on")
        return 130


def _parser():
    parser = argparse.ArgumentParser("keras-transformer", description="Transformers on your text.")
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("demo", help="the whole job on embedded data")
    command.add_argument("overrides", nargs="*", metavar="TABLE.KEY=VALUE")
    command.add_argument("--directory", default="runs/demo", help="default: %(default)s")
    command.set_defaults(run=_demo)

    command = commands.add_parser("train", help="train a model as a TOML file says")
    command.add_argument("config", metavar="CONFIG.toml")
    command.add_argument(
        "overrides", nargs="*", metavar="TABLE.KEY=VALUE", help="as in training.epochs=20"
    )
    command.add_argument(
        "--run-dir", help="where everything of the run goes (default: runs/CONFIG, as it is named)"
    )
    command.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    command.set_defaults(run=_train)

    command = commands.add_parser("translate", help="translate lines of text")
    _add_models(command, "a run, or an exported model")
    command.add_argument("--input", help="a file of lines; standard input by default")
    command.add_argument(
        "--n-best",
        type=int,
        metavar="N",
        help="the N best translations: lines of line number, score, translation, between tabs",
    )
    command.set_defaults(run=_translate)

    command = commands.add_parser("evaluate", help="score translations against references")
    _add_models(command, "a run, or an exported model")
    command.add_argument("--source", required=True, help="lines to translate")
    command.add_argument("--reference", required=True, help="what they should become")
    command.add_argument("--output", help="write the translations to this file")
    command.add_argument(
        "--tokenize",
        default="13a",
        choices=BLEU_TOKENIZERS,
        help="how BLEU splits words; none for text that is split already (default: %(default)s)",
    )
    command.add_argument("--lowercase", action="store_true", help="BLEU ignores case")
    command.set_defaults(run=_evaluate)

    command = commands.add_parser("export", help="write a model that a server can run")
    _add_models(command, "a run")
    command.add_argument("--output", required=True, metavar="DIR", help="where the model goes")
    command.add_argument(
        "--format", default="saved_model", choices=["saved_model", "ctranslate2"],
        help="for TensorFlow Serving or for CTranslate2 (default: %(default)s)",
    )  # fmt: skip
    command.add_argument("--version", type=int, help="default: one more than the last in DIR")
    command.add_argument("--dtype", default="float32", help="default: %(default)s")
    command.set_defaults(run=_export)

    command = commands.add_parser(
        "distill", help="let a model translate training data, for a smaller one to learn from"
    )
    _add_models(command, "a run, or an exported model: the teacher")
    command.add_argument(
        "--source", help="lines to translate; by default the source of the run's training data"
    )
    command.add_argument(
        "--output", required=True, metavar="FILE.tsv",
        help="where the pairs go; the student's data.train",
    )  # fmt: skip
    command.add_argument(
        "--resume", action="store_true", help="go on with a file that the same teacher has begun"
    )
    command.set_defaults(run=_distill)

    command = commands.add_parser("plot", help="draw what a model does")
    add_pictures(command, _add_models, _load)

    command = commands.add_parser("serve", help="answer over gRPC and REST, as TensorFlow Serving")
    add_flags(command)
    command.set_defaults(run=serve)
    return parser


def _add_models(command, what, several=True):
    command.add_argument("run_dir", metavar="RUN", help=what)
    command.add_argument(
        "overrides", nargs="*", metavar="decoding.KEY=VALUE", help="as in decoding.beams=8"
    )
    command.set_defaults(others=[])
    if several:
        command.add_argument(
            "--with", action="append", default=[], dest="others", metavar="RUN",
            help="another run of the same vocabulary: their probabilities are averaged",
        )  # fmt: skip


def _demo(parsed):
    demo(parsed.directory, parsed.overrides)


def _train(parsed):
    config = read_config(parsed.config, parsed.overrides)
    run_dir = parsed.run_dir or f"runs/{Path(parsed.config).stem}"
    share_cores(config.training.parallel_parts)
    try:
        train(config, run_dir, resume=parsed.resume)
    except Stopped:
        words = ["train", parsed.config, *parsed.overrides, "--run-dir", run_dir, "--resume"]
        print(f"stopped and saved; go on with: keras-transformer {shlex.join(words)}")
        return 130
    print(f"done: keras-transformer translate {run_dir}")
    return 0


def _translate(parsed):
    if parsed.input:
        # A fault in the file is found before the first line is out.
        if not sum(1 for _ in read_lines(parsed.input)):
            raise InputError(f"{parsed.input}: no lines. Give a file with sentences.")
        lines, at_once = read_lines(parsed.input), AT_ONCE
    else:
        lines = decode_lines(sys.stdin.buffer, "standard input")
        at_once = 1 if sys.stdin.isatty() else AT_ONCE
    translator = _translator(parsed)
    if parsed.n_best is not None and not isinstance(translator, Translator):
        raise InputError(f"{parsed.run_dir}: --n-best needs a run; ask the model's n_best instead.")
    numbers = count(1)
    while chunk := list(islice(lines, at_once)):
        if parsed.n_best is None:
            for translation in translator(chunk):
                print(translation)
        else:
            found = translator.n_best(chunk, parsed.n_best)
            # The endless one last, or it would lose a number with each chunk.
            for best, number in zip(found, numbers, strict=False):
                for hypothesis in best:
                    print(f"{number}\t{hypothesis.score:.4f}\t{hypothesis.text}")
        sys.stdout.flush()


def _evaluate(parsed):
    if parsed.output and not Path(parsed.output).absolute().parent.is_dir():
        raise InputError(f"{parsed.output}: its directory is not there. Make it first.")
    pairs = list(read_pairs((parsed.source, parsed.reference)))
    sources, references = map(list, zip(*pairs, strict=True))
    translations = _translator(parsed)(sources)
    if parsed.output:
        text = "".join(f"{line}\n" for line in translations)
        write_atomically(parsed.output, lambda path: path.write_text(text, "utf-8"))
    print(score(translations, references, parsed.tokenize, parsed.lowercase))


def _distill(parsed):
    teacher = Path(parsed.run_dir)
    if parsed.source:
        sources = read_lines(parsed.source)
    elif is_exported(teacher):
        raise InputError(f"{teacher}: an exported model has no training data: give --source.")
    else:
        files = read_config(teacher / "config.toml").data.files("train")
        sources = (source for source, _ in read_pairs(files))
    pairs = distill(_translator(parsed), sources, parsed.output, parsed.resume)
    print(f"done: {pairs:,} pairs; keras-transformer train CONFIG.toml data.train={parsed.output}")


def _export(parsed):
    models, tokenizer, decoding = _load(parsed)
    if parsed.format == "ctranslate2":
        if len(models) > 1:
            raise InputError("CTranslate2 runs one model: leave --with out.")
        if parsed.overrides:
            raise InputError(
                "CTranslate2 is told how to decode when it runs: leave decoding.* out."
            )
        export_ctranslate2(models[0], tokenizer, parsed.output)
        print(f"done: {parsed.output}")
        return
    print("tracing the search and writing the model ...", flush=True)
    directory = export(models, tokenizer, parsed.output, decoding, parsed.version, parsed.dtype)
    print(f"done: {directory}; keras-transformer translate {parsed.output}")


def _translator(parsed):
    if not is_exported(parsed.run_dir):
        return Translator(*_load(parsed))
    if parsed.overrides or parsed.others:
        raise InputError(
            f"{parsed.run_dir}: how an exported model decodes was settled when it was exported. "
            "Export it anew with other settings."
        )
    return ExportedTranslator(parsed.run_dir)


def _load(parsed):
    """The models of one or several runs, their tokenizer, and how the first of them decodes."""
    for override in parsed.overrides:
        if not override.startswith("decoding."):
            raise InputError(f"override {override!r}: only decoding.* can change after training.")
    model, tokenizer = load_run(parsed.run_dir)
    models = [model]
    for other in parsed.others:
        model, its_tokenizer = load_run(other)
        if its_tokenizer.model != tokenizer.model:
            raise InputError(
                f"{other}: its vocabulary is not that of {parsed.run_dir}. Leave it out, or train "
                "it with the same data and [tokenizer]."
            )
        models.append(model)
    config = read_config(Path(parsed.run_dir) / "config.toml", parsed.overrides)
    return models, tokenizer, config.decoding


if __name__ == "__main__":
    sys.exit(main())
