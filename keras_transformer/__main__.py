"""The command line: demo | train | translate | evaluate."""

import argparse
import os
import sys
from itertools import islice
from pathlib import Path

from keras_transformer.config_file import read_config
from keras_transformer.data.corpus import decode_lines, read_lines, read_pairs
from keras_transformer.demo import demo
from keras_transformer.errors import InputError
from keras_transformer.evaluation import score
from keras_transformer.generation.translate import Translator
from keras_transformer.training.checkpoint import write_atomically
from keras_transformer.training.run import load_run, train
from keras_transformer.version import VERSION


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns 0, or 2 when something it was given is wrong."""
    parsed = _parser().parse_args(arguments)
    try:
        parsed.run(parsed)
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
    return 0


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
    command.add_argument("--run-dir", required=True, help="where everything of the run goes")
    command.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    command.set_defaults(run=_train)

    command = commands.add_parser("translate", help="translate lines of text")
    command.add_argument("run_dir", metavar="RUN")
    command.add_argument("--input", help="a file of lines; standard input by default")
    command.set_defaults(run=_translate)

    command = commands.add_parser("evaluate", help="score translations against references")
    command.add_argument("run_dir", metavar="RUN")
    command.add_argument("--source", required=True, help="lines to translate")
    command.add_argument("--reference", required=True, help="what they should become")
    command.add_argument("--output", help="write the translations to this file")
    command.add_argument(
        "--tokenize",
        default="13a",
        choices=["13a", "none", "char", "intl", "zh"],
        help="how BLEU splits words; none for text that is split already (default: %(default)s)",
    )
    command.add_argument("--lowercase", action="store_true", help="BLEU ignores case")
    command.set_defaults(run=_evaluate)
    return parser


def _demo(parsed):
    demo(parsed.directory, parsed.overrides)


def _train(parsed):
    config = read_config(parsed.config, parsed.overrides)
    train(config, parsed.run_dir, resume=parsed.resume)
    print(f"done: keras-transformer translate {parsed.run_dir}")


def _translate(parsed):
    if parsed.input:
        # A fault in the file is found before the first line is out.
        if not sum(1 for _ in read_lines(parsed.input)):
            raise InputError(f"{parsed.input}: no lines. Give a file with sentences.")
        lines, at_once = read_lines(parsed.input), 1000
    else:
        lines = decode_lines(sys.stdin.buffer, "standard input")
        at_once = 1 if sys.stdin.isatty() else 1000
    translator = Translator(*load_run(parsed.run_dir))
    while chunk := list(islice(lines, at_once)):
        for translation in translator(chunk):
            print(translation)
        sys.stdout.flush()


def _evaluate(parsed):
    if parsed.output and not Path(parsed.output).absolute().parent.is_dir():
        raise InputError(f"{parsed.output}: its directory is not there. Make it first.")
    pairs = list(read_pairs((parsed.source, parsed.reference)))
    sources, references = map(list, zip(*pairs, strict=True))
    translations = Translator(*load_run(parsed.run_dir))(sources)
    if parsed.output:
        text = "".join(f"{line}\n" for line in translations)
        write_atomically(parsed.output, lambda path: path.write_text(text, "utf-8"))
    print(score(translations, references, parsed.tokenize, parsed.lowercase))


if __name__ == "__main__":
    sys.exit(main())
