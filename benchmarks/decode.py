"""Decoding speed: the SavedModel beside CTranslate2, on the same weights.

    python benchmarks/decode.py [--presets small base] [--rounds 5] [--output benchmarks/decode.md]

Every sentence has 24 tokens and gets exactly 32, so that all engines do the same work, and all
return ids and scores. Each engine runs with one execution of two threads and with two executions of
one thread side by side, the SavedModel both as it is and compiled by XLA; its best setting counts.
The settings take turns, one at a time, and the best round of each counts.
"""

import argparse
import concurrent.futures
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import machine  # beside this file

SOURCE, TARGET, VOCABULARY = 24, 32, 8000
ROWS = {1: (1, 16, 64), 4: (32,)}  # beams: sentences in a batch
SETTINGS = {
    "saved_model": [(signature, replicas) for signature in ("decode_ids", "decode_ids_compiled")
                    for replicas in (1, 2)],
    "float32": [("float32", 1), ("float32", 2)],
    "int8": [("int8", 1), ("int8", 2)],
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--presets", nargs="+", default=["small", "base"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--output", help="write the table to this file as well")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.worker:
        work(*parsed.worker)
        return
    lines = [
        "| preset | batch | SavedModel | ms/step | tokens/s | CTranslate2 float32 | ms/step | "
        "tokens/s | ratio | CTranslate2 int8 | ms/step | tokens/s | ratio |",
        "|---|---|---|--:|--:|---|--:|--:|--:|---|--:|--:|--:|",
    ]
    print(*lines, sep="\n", flush=True)
    for preset in parsed.presets:
        with tempfile.TemporaryDirectory() as directory:
            run(sys.executable, __file__, "--worker", "export", preset, directory, "-")
            for beams in ROWS:
                for line in measure(preset, directory, beams, parsed.rounds, parsed.seconds):
                    print(line, flush=True)
                    lines.append(line)
    if parsed.output:
        lines += ["", machine("tensorflow", "keras", "ctranslate2")]
        Path(parsed.output).write_text("\n".join(lines) + "\n")


def run(*command):
    subprocess.run(command, check=True, stdout=sys.stderr)


def measure(preset, directory, beams, rounds, seconds):
    """The lines of the table for one width of the beam."""
    workers = {}
    for engine, settings in SETTINGS.items():
        for kind, replicas in settings:
            command = [sys.executable, __file__, "--worker", kind, directory, str(beams)]
            workers[engine, kind, replicas] = subprocess.Popen(
                [*command, str(replicas)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
    for sentences in ROWS[beams]:
        best = dict.fromkeys(workers, float("inf"))  # seconds for a token
        for _ in range(rounds + 1):  # the first is for warming up
            for setting, worker in workers.items():
                print(json.dumps([sentences, seconds]), file=worker.stdin, flush=True)
                best[setting] = min(best[setting], json.loads(worker.stdout.readline()))
        yield describe(preset, sentences, beams, best)
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()


def describe(preset, sentences, beams, best):
    """A line of the table: the best setting of each engine."""
    cells = [preset, f"{sentences}" if beams == 1 else f"{sentences} x {beams} beams"]
    ours = None
    for engine in SETTINGS:
        setting = min((each for each in best if each[0] == engine), key=best.get)
        _, kind, replicas = setting
        speed = 1 / best[setting]
        threads = "2 threads" if replicas == 1 else "2 replicas"
        cells.append(f"XLA, {threads}" if kind == "decode_ids_compiled" else threads)
        cells += [f"{1000 * sentences * replicas / speed:.2f}", f"{speed:,.0f}"]
        if ours is None:
            ours = speed
        else:
            cells.append(f"{ours / speed:.2f}")
    return f"| {' | '.join(cells)} |"


def work(kind, *arguments):
    """A process of its own for every setting, as threads are settled when an engine begins."""
    if kind == "export":
        export_models(*arguments[:2])
        return
    directory, beams, replicas = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    make = translator if kind in ("float32", "int8") else saved_model
    translate = make(kind, directory, beams, replicas)
    with concurrent.futures.ThreadPoolExecutor(replicas) as threads:
        for line in sys.stdin:
            sentences, seconds = json.loads(line)
            print(
                json.dumps(time_token(translate, threads, replicas, sentences, seconds)), flush=True
            )


def time_token(translate, threads, replicas, sentences, seconds):
    """The seconds that a token takes, with all replicas at work."""
    began, tokens = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in threads.map(translate, [sentences] * replicas * 2):
            tokens += sentences * TARGET
    return (time.perf_counter() - began) / tokens


def make_words():
    """Words enough for a vocabulary, as nothing is trained."""
    syllables = ["".join(pair) for pair in itertools.product("bdfgklmnprst", "aeiou")]
    chance = random.Random(1)
    return ["".join(chance.choices(syllables, k=chance.randint(2, 4))) for _ in range(40_000)]


def make_model(preset):
    """A model with random weights, and its tokenizer."""
    import keras_transformer as kt

    words, chance = make_words(), random.Random(2)
    lines = [" ".join(chance.choices(words, k=10)) for _ in range(20_000)]
    tokenizer = kt.Tokenizer.learn(lines, VOCABULARY)
    config = kt.ModelConfig.preset(preset, vocabulary_size=tokenizer.vocabulary_size)
    return kt.Transformer(config), tokenizer


def export_models(preset, directory):
    """The same random weights for both engines, for greedy and for beam search."""
    import keras_transformer as kt

    model, tokenizer = make_model(preset)
    for beams in ROWS:
        decoding = kt.DecodingConfig(beams=beams, min_length=TARGET, max_length=TARGET - 1)
        kt.export(model, tokenizer, Path(directory) / "saved_model", decoding, version=beams)
    kt.export_ctranslate2(model, tokenizer, Path(directory) / "ctranslate2")


def saved_model(signature, directory, beams, replicas):
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 its ops

    from keras_transformer.training.memory import keep_freed_memory

    keep_freed_memory()  # as a server does well to do
    tf.config.threading.set_intra_op_parallelism_threads(2 // replicas)
    tf.config.threading.set_inter_op_parallelism_threads(replicas)
    model = tf.saved_model.load(str(directory / "saved_model" / str(beams)))
    decode = model.signatures[signature]

    def translate(sentences):
        ids = tf.random.uniform([sentences, SOURCE], 4, VOCABULARY, tf.int32)
        found = decode(ids=ids, lengths=tf.fill([sentences], SOURCE))
        assert found["ids"].shape == (sentences, TARGET), found["ids"].shape

    return translate


def translator(compute_type, directory, beams, replicas):
    import ctranslate2
    import numpy as np

    model = ctranslate2.Translator(
        str(directory / "ctranslate2"),
        compute_type=compute_type,
        inter_threads=replicas,
        intra_threads=2 // replicas,
    )
    vocabulary = json.loads((directory / "ctranslate2" / "shared_vocabulary.json").read_text())
    chance = np.random.default_rng(1)

    def translate(sentences):
        ids = chance.integers(4, VOCABULARY, (sentences, SOURCE))
        found = model.translate_batch(
            [[vocabulary[one] for one in row] for row in ids],
            beam_size=beams,
            max_decoding_length=TARGET,
            min_decoding_length=TARGET,
            return_scores=True,
        )
        assert len(found) == sentences
        assert len(found[0].hypotheses[0]) == TARGET

    return translate


if __name__ == "__main__":
    main()
