"""The command as a user has it: a process, its output, its exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import keras_transformer as kt
from keras_transformer.__main__ import main
from keras_transformer.data.dates import write_dates

ROOT = Path(__file__).parent.parent
# As a user's shell has it: JAX, where it is installed, sets this one when it is imported.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    write_dates(directory, {"train": 200, "test": 20})
    (directory / "empty").mkdir()
    return directory


@pytest.fixture(scope="module")
def config(data):
    path = data / "config.toml"
    path.write_text(
        f"""
        [model]
        d_model = 16
        d_ff = 32
        num_heads = 2
        encoder_layers = 1
        decoder_layers = 1
        [tokenizer]
        kind = "char"
        vocabulary_size = 300
        [data]
        train_source = "{data}/train.text"
        train_target = "{data}/train.iso"
        [training]
        epochs = 1
        """
    )
    return str(path)


@pytest.fixture(scope="module")
def run_dir(config, tmp_path_factory):
    run_dir = str(tmp_path_factory.mktemp("runs") / "run")
    assert main(["train", config, "--run-dir", run_dir]) == 0
    return run_dir


def test_translate_reads_lines_and_writes_as_many(run_dir, data, capsys):
    source = (data / "test.text").read_text("utf-8").splitlines()
    (data / "gaps.text").write_text("\n".join([source[0], "", source[1]]) + "\n", "utf-8")
    assert main(["translate", run_dir, "--input", str(data / "gaps.text")]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 4
    assert lines[1] == lines[3] == ""
    translator = kt.Translator(*kt.load_run(run_dir))
    assert [lines[0], lines[2]] == translator(source[:2])


def test_evaluate_prints_bleu_chrf_and_exact_match(run_dir, data, capsys, tmp_path):
    files = ["--source", str(data / "test.text"), "--reference", str(data / "test.iso")]
    output = tmp_path / "translations.txt"
    assert main(["evaluate", run_dir, *files, "--tokenize", "none", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("BLEU", "chrF", "exact match", "tok:none"))
    assert len(output.read_text("utf-8").splitlines()) == 20


def test_the_installed_command_translates_standard_input_quietly(run_dir, data):
    command = Path(sys.executable).parent / "keras-transformer"
    text = (data / "test.text").read_text("utf-8")
    done = subprocess.run(
        [command, "translate", run_dir],
        input=text.encode(),
        capture_output=True,
        timeout=120,
        env=ENVIRONMENT,
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")
    assert done.stdout.decode().count("\n") == 20


def test_a_mistake_is_one_line_and_exit_code_2_without_a_trace_of_it(config, tmp_path):
    command = Path(sys.executable).parent / "keras-transformer"
    done = subprocess.run(
        [command, "train", config, "training.epoch=3", "--run-dir", str(tmp_path / "run")],
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.decode() == (
        "keras-transformer: override 'training.epoch=3': unknown key training.epoch. "
        "Did you mean epochs?\n"
    )
    assert not (tmp_path / "run").exists()


NOT_UTF8 = b"a\nb\xe9\n"

# The file `bad` holds the given bytes; DATA and RUN stand for the directories.
BAD_INPUT = [
    ("translate DATA/nowhere", b"", "nowhere: there is no such run directory"),
    ("translate DATA/empty", b"", "not a run directory: it has no config.toml"),
    ("translate RUN --input DATA/nothing", b"", "nothing: there is no such file"),
    ("translate RUN --input DATA/bad", NOT_UTF8, "bad, line 2: not UTF-8 (byte 0xe9 at column 2)"),
    ("evaluate RUN --source DATA/bad --reference DATA/bad", b"", "no lines"),
    (
        "evaluate RUN --source DATA/test.text --reference DATA/train.iso",
        b"",
        "train.iso has 200: line N of one must translate line N of the other",
    ),
    ("train DATA/no.toml --run-dir DATA/x", b"", "no such config file"),
    ("train DATA/config.toml --run-dir RUN", b"", "Add --resume"),
    ("train DATA/config.toml --run-dir DATA/bad", b"", "this is a file"),
    ("train DATA/config.toml --run-dir /proc/run", b"", "/proc/run"),
    ("train DATA/config.toml epochs=3 --run-dir DATA/x", b"", "expected table.key=value"),
    (
        "train DATA/config.toml tokenizer.kind=bpe tokenizer.vocabulary_size=9 --run-dir DATA/x",
        b"",
        "Change tokenizer.vocabulary_size",
    ),
    (
        "train DATA/config.toml data.train_target=DATA/bad --run-dir DATA/x",
        b"x\n",
        "bad has 1: line N",
    ),
    (
        "train DATA/config.toml data.validation=DATA/bad --run-dir DATA/x",
        b"a",
        "bad, line 1: 0 tabs",
    ),
    (
        "train DATA/config.toml data.validation=DATA/bad --run-dir DATA/x",
        b"a\tb\nc\t\xe9\n",
        "bad, line 2: not UTF-8",
    ),
    ("translate RUN --input DATA/bad", b"", "bad: no lines"),
    (
        "evaluate RUN --source DATA/test.text --reference DATA/test.iso --output DATA/no/where",
        b"",
        "its directory is not there",
    ),
    ("train DATA/config.toml model.encoder_heads=dot(window=3) --run-dir DATA/x", b"", "window"),
    ("train DATA/config.toml model.activation=glu --run-dir DATA/x", b"", "[model] cannot be made"),
    (
        "train DATA/config.toml data.train=DATA/bad data.train_source=DATA/bad --run-dir DATA/x",
        b"a\tb",
        "give either data.train",
    ),
    ("demo training.epoch=3 --directory DATA/x", b"", "Did you mean epochs?"),
    ("translate RUN decoding.beam=3 --input DATA/test.text", b"", "Did you mean beams?"),
    ("translate RUN decoding.beams=0 --input DATA/test.text", b"", "expected at least 1"),
    ("translate RUN training.epochs=3 --input DATA/test.text", b"", "only decoding.* can change"),
    ("translate RUN --n-best 9 --input DATA/test.text", b"", "9 best of 4 beams"),
    ("translate RUN --n-best 0 --input DATA/test.text", b"", "0 best of 4 beams"),
    ("export RUN --format ctranslate2 --output DATA/x decoding.beams=2", b"", "leave decoding.*"),
    ("translate RUN --with DATA/empty --input DATA/test.text", b"", "not a run directory"),
    ("translate RUN decoding.suppress=zebra --input DATA/test.text", b"", "no piece 'zebra'"),
    ("export DATA/nowhere --output DATA/x", b"", "nowhere: there is no such run directory"),
    ("export RUN --output DATA/bad", b"", "bad"),
    ("export RUN --with RUN --format ctranslate2 --output DATA/x", b"", "leave --with out"),
    ("export RUN --output DATA/x --dtype float99", b"", "float99"),
    ("export RUN --output DATA/x --version 0", b"", "counted from 1"),
    ("plot positions --output DATA/x.gif", b"", "a picture is a .png or .svg file"),
    ("plot positions --output DATA/no/x.png", b"", "its directory is not there"),
    ("plot positions --d-model 7 --output DATA/x.png", b"", "give an even number"),
    ("plot positions --length 0 --output DATA/x.png", b"", "--length 0: at least 1"),
    ("plot curves DATA/nowhere", b"", "nowhere: there is no such run directory"),
    ("plot curves DATA/empty", b"", "no log.csv with an epoch yet"),
    ("plot schedule DATA/no.toml --output DATA/x.png", b"", "no such config file"),
    (
        "plot schedule DATA/config.toml training.cooldown_epochs=1 --output DATA/x.png",
        b"",
        "Say with --batches",
    ),
    ("plot attention RUN --source= --output DATA/x.png", b"", "--source is empty"),
    (
        "plot attention RUN --source May --target 5 --layer 9 --output DATA/x.png",
        b"",
        "the model has 1 layers of 2 heads",
    ),
    ("plot beam RUN --source May --steps 0 --output DATA/x.png", b"", "--steps 0: at least 1"),
    ("plot beam RUN --source May decoding.temperature=1 --output DATA/x.png", b"", "searching"),
]


@pytest.mark.parametrize(("command", "bad", "message"), BAD_INPUT)
def test_bad_input_is_one_line_exit_code_2_and_nothing_written(
    command, bad, message, data, run_dir, config, capsys
):
    (data / "bad").write_bytes(bad)
    before = sorted(data.rglob("*"))
    words = command.replace("DATA", str(data)).replace("RUN", run_dir).split()
    assert main(words) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.startswith("keras-transformer: ")
    assert printed.err.count("\n") == 1
    assert sorted(data.rglob("*")) == before


def test_the_n_best_come_with_number_and_score(run_dir, data, capsys, monkeypatch):
    monkeypatch.setattr("keras_transformer.__main__.AT_ONCE", 8)  # of the 20 lines
    assert main(["translate", run_dir, "--n-best", "2", "--input", str(data / "test.text")]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [int(number) for number, _, _ in lines] == [1 + row // 2 for row in range(40)]
    assert all(float(lines[row][1]) >= float(lines[row + 1][1]) for row in range(0, 40, 2))


def test_an_ensemble_is_translated_with_and_one_of_two_vocabularies_is_not(
    run_dir, config, data, tmp_path, capsys
):
    lines = ["--input", str(data / "test.text")]
    assert main(["translate", run_dir, *lines]) == 0
    alone = capsys.readouterr().out
    assert main(["translate", run_dir, "--with", run_dir, *lines]) == 0
    assert capsys.readouterr().out == alone
    other = str(tmp_path / "other")
    assert main(["train", config, "tokenizer.vocabulary_size=60", "--run-dir", other]) == 0
    assert main(["translate", run_dir, "--with", other, *lines]) == 2
    assert "its vocabulary is not that of" in capsys.readouterr().err


def test_an_exported_model_translates_as_its_run_does(run_dir, data, tmp_path, capsys):
    lines = ["--input", str(data / "test.text")]
    few = ["decoding.beams=2", "decoding.max_length=12"]
    exported = str(tmp_path / "exported")
    assert main(["export", run_dir, "--output", exported, *few]) == 0
    assert f"{exported}/1" in capsys.readouterr().out
    assert main(["translate", run_dir, *few, *lines]) == 0
    expected = capsys.readouterr().out
    for path in (exported, f"{exported}/1"):
        assert main(["translate", path, *lines]) == 0
        assert capsys.readouterr().out == expected
    for wrong in (["decoding.beams=8"], ["--with", run_dir]):
        assert main(["translate", exported, *lines, *wrong]) == 2
        assert "Export it anew" in capsys.readouterr().err
    assert main(["translate", exported, *lines, "--n-best", "2"]) == 2
    assert "--n-best needs a run" in capsys.readouterr().err


def test_a_model_for_ctranslate2_is_written_with_its_vocabulary(run_dir, tmp_path, capsys):
    output = tmp_path / "ctranslate2"
    assert main(["export", run_dir, "--format", "ctranslate2", "--output", str(output)]) == 0
    assert {path.name for path in output.iterdir()} >= {"model.bin", "tokenizer.model"}


def test_a_reader_that_leaves_early_is_no_error(run_dir, data):
    command = Path(sys.executable).parent / "keras-transformer"
    done = subprocess.run(
        f"yes '1 May 2024' | head -20000 | {command} translate {run_dir} | head -1; "
        "echo ${PIPESTATUS[2]}",
        shell=True, executable="/bin/bash", capture_output=True, timeout=300, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.stderr == b""
    assert done.stdout.endswith(b"\n0\n")


def test_a_line_that_is_not_utf8_on_standard_input_is_named(run_dir):
    done = subprocess.run(
        [sys.executable, "-m", "keras_transformer_cli", "translate", run_dir],
        input=b"1 May 2024\n\xff\n", capture_output=True, timeout=120, cwd=ROOT, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 2
    assert b"standard input, line 2: not UTF-8" in done.stderr
    assert done.stdout == b""


def test_plot_draws_into_the_run_and_says_where(run_dir, capsys):
    pair = ["--source", "1 May 2024", "--target", "2024-05-01"]
    beam = ["--source", "1 May 2024", "decoding.beams=2", "decoding.max_length=5"]
    for words, names in (
        (["attention", run_dir, *pair], ["attention-cross.png"]),
        (["beam", run_dir, *beam], ["beam.png"]),
        (["curves", run_dir], ["curves.png"]),
        (["schedule", run_dir, "training.cooldown_epochs=1"], ["schedule.png"]),
        (["positions", run_dir], ["positions.png"]),
    ):
        assert main(["plot", *words]) == 0
        paths = [Path(line) for line in capsys.readouterr().out.splitlines()]
        assert paths == [Path(run_dir, name) for name in names]
        assert all(path.read_bytes()[:4] == b"\x89PNG" for path in paths)


def test_plot_writes_what_it_is_asked_to_write(run_dir, config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["plot", "positions", "--length", "8", "--d-model", "6"]) == 0
    assert main(["plot", "schedule", config, "training.warmup_steps=30"]) == 0
    assert capsys.readouterr().out == "positions.png\nschedule.png\n"
    few = ["decoding.beams=2", "decoding.max_length=5"]
    every = ["--kind", "all", "--output", "maps.svg", *few]
    assert main(["plot", "attention", run_dir, "--source", "1 May 2024", *every]) == 0
    names = [f"maps-{kind}.svg" for kind in ("cross", "encoder", "decoder")]
    assert capsys.readouterr().out.splitlines() == names
    for name in names:
        text = Path(name).read_text("utf-8")
        assert ">layer 1, head 2</text>" in text
        assert (">M</text>" in text) == (name != "maps-decoder.svg")  # a letter of the source
    output = ["--output", "tree.svg"]
    assert main(["plot", "beam", run_dir, "--source", "1 May 2024", *few, *output]) == 0
    assert "score" in Path("tree.svg").read_text("utf-8")
