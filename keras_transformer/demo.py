"""The whole job on embedded data: corpus, vocabulary, training, scores, a picture, a server."""

import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

from keras_transformer_client import Client
from keras_transformer_server.process import ServerProcess

from keras_transformer.config_file import read_config
from keras_transformer.data.corpus import read_lines
from keras_transformer.data.dates import write_dates
from keras_transformer.evaluation import score
from keras_transformer.exporting.saved_model import export
from keras_transformer.generation.translate import Translator
from keras_transformer.plots import plot_cross_attention
from keras_transformer.training.run import load_run, train

SIZES = {"train": 20_000, "validation": 500, "test": 1_000}


def demo(directory: str | Path, overrides: list[str], say=print) -> float:
    """Runs the demo in a directory and returns the exact match on held-out dates, in per cent."""
    directory = Path(directory)
    data, run_dir = directory / "data", directory / "run"
    files = [
        f"data.{split}_{side}={data / split}.{ending}"
        for split in ("train", "validation")
        for side, ending in (("source", "text"), ("target", "iso"))
    ]
    with resources.as_file(resources.files("keras_transformer") / "demo.toml") as path:
        config = read_config(path, [*files, *overrides])

    data.mkdir(parents=True, exist_ok=True)
    write_dates(data, SIZES)
    say(f"1. Dates in 18 languages are in {data}; no date of the test is in the training.")

    say(f"2. Training; a run that is in {run_dir} already is gone on with.")
    began = time.monotonic()
    train(config, run_dir, resume=True, say=lambda line: say(f"   {line}"))
    say(f"   took {time.monotonic() - began:.0f} s")

    model, tokenizer = load_run(run_dir)
    translator = Translator(model, tokenizer, config.decoding)
    lines, references = (list(read_lines(data / f"test.{ending}")) for ending in ("text", "iso"))
    translations = translator(lines)
    scores = score(translations, references)
    say(f"3. Exact match on {len(lines)} held-out dates: {scores.exact_match:.1f} %")

    say("4. Some of them:")
    for line, translation in list(zip(lines, translations, strict=True))[:8]:
        say(f"   {line}  ->  {translation}")

    example = next(line for line in lines if "day, September" in line)  # English, with a weekday
    picture = directory / "attention.png"
    plot_cross_attention(model, tokenizer, example, translator([example])[0], picture)
    say(f"5. What the decoder looks at while it writes {example!r}: {picture}")

    exported = export(model, tokenizer, directory / "exported", config.decoding)
    say(f"6. A SavedModel with vocabulary and search inside: {exported}")
    again = _translate_elsewhere(exported, data / "test.text")
    alike = sum(one == other for one, other in zip(again, translations, strict=True))
    say(f"   In a process of its own it gives {alike} of {len(lines)} translations alike.")

    say("7. Serving it, and asking through the client:")
    for line, answer in _ask_a_server(directory / "exported", lines[:3]):
        say(f"   {line}  ->  {answer}")
    return scores.exact_match


def _translate_elsewhere(exported, path):
    """The lines of a file, translated by an exported model in a fresh process."""
    command = [sys.executable, "-m", "keras_transformer_cli", "translate", exported]
    done = subprocess.run([*command, "--input", path], stdout=subprocess.PIPE, check=True)
    return done.stdout.decode("utf-8").split("\n")[:-1]


def _ask_a_server(exported, lines):
    """Pairs of lines and what a server on a free port of this machine says of them."""
    with (
        ServerProcess(exported, "--name", "dates") as server,
        Client(server.address, model="dates") as client,
    ):
        return list(zip(lines, client.translate(lines), strict=True))
