"""Whole runs: the files they leave, and what becomes of one that is killed."""

import csv
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tomli_w

import keras_transformer as kt
from keras_transformer.data.dates import write_dates
from keras_transformer.training.checkpoint import Checkpoints, write_atomically
from keras_transformer.training.cores import share_cores, usable_cores
from keras_transformer.training.memory import keep_freed_memory

EPOCHS = 3
STEPS = 9  # batches in an epoch


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A run of a few seconds: a small model, 9 batches an epoch, a checkpoint after every 2."""
    data = tmp_path_factory.mktemp("data")
    write_dates(data, {"train": 300, "validation": 40})
    return {
        "model": dict(d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1),
        "tokenizer": dict(kind="char", vocabulary_size=300),
        "data": dict(
            train_source=str(data / "train.text"),
            train_target=str(data / "train.iso"),
            validation_source=str(data / "validation.text"),
            validation_target=str(data / "validation.iso"),
            tokens_per_batch=700,
        ),
        "training": dict(
            epochs=EPOCHS, warmup_steps=20, clip_norm=1.0, checkpoint_steps=2, bleu_epochs=0
        ),
    }


@pytest.fixture(scope="module")
def unbroken(tables, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "unbroken"
    kt.train(kt.read_tables(tables), run_dir, say=lambda _: None)
    return run_dir


def read_log(run_dir):
    with open(run_dir / "log.csv", newline="") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def test_a_run_leaves_all_that_is_needed_of_it(unbroken):
    names = {path.name for path in unbroken.iterdir()}
    assert names == {
        "config.toml", "tokenizer.model", "checkpoints", "log.csv", "curves.png", "tensorboard",
        "model.keras",
    }  # fmt: skip
    log = read_log(unbroken)
    assert [row["epoch"] for row in log] == [0, 1, 2]
    assert log[2]["loss"] < log[0]["loss"]
    assert {"accuracy", "perplexity", "val_loss", "val_accuracy", "val_bleu"} <= log[0].keys()
    assert len(list((unbroken / "checkpoints").glob("step-*"))) == 3  # training.keep_checkpoints
    assert any((unbroken / "tensorboard").rglob("events.*"))


def test_the_config_of_a_run_can_be_trained_again(unbroken, tables):
    again = kt.read_config(unbroken / "config.toml")
    assert again == kt.read_tables(tables)


def test_the_model_of_a_run_is_an_ordinary_keras_model(unbroken):
    model = keras.saving.load_model(unbroken / "model.keras")
    assert isinstance(model, kt.Transformer)
    assert int(model.optimizer.iterations) == EPOCHS * STEPS
    assert float(model.optimizer.learning_rate) > 0


def test_a_run_that_has_not_finished_can_be_used(unbroken, tmp_path):
    for name in ("config.toml", "tokenizer.model", "checkpoints"):
        os.symlink(unbroken / name, tmp_path / name)
    model, tokenizer = kt.load_run(tmp_path)
    finished, _ = kt.load_run(unbroken)
    for one, other in zip(model.weights, finished.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert tokenizer.encode(["1 May"])


@pytest.mark.parametrize(
    "killed_at", ["step-00000008", "step-00000013", "step-00000018", "step-00000022"]
)
def test_a_killed_run_ends_with_the_losses_of_an_unbroken_one(
    tables, unbroken, tmp_path, killed_at
):
    """Killed before the last batch of an epoch, within one, between two, and in the last one."""
    (tmp_path / "config.toml").write_text(tomli_w.dumps(tables), "utf-8")
    command = [
        sys.executable, "-m", "keras_transformer", "train", str(tmp_path / "config.toml"),
        "--run-dir", str(tmp_path / "run"), "--resume",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "run" / "checkpoints" / f"{killed_at}.npz").exists():
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "run" / "model.keras").exists()

    config = kt.read_tables(tables)
    said = []
    kt.train(config, tmp_path / "run", resume=True, say=said.append)
    assert any("going on from epoch" in line for line in said)
    log, expected = read_log(tmp_path / "run"), read_log(unbroken)
    assert [row["epoch"] for row in log] == [row["epoch"] for row in expected]
    for row, unbroken_row in zip(log, expected, strict=True):
        assert row == pytest.approx(unbroken_row, abs=1e-5, nan_ok=True)
    for one, other in zip(
        kt.load_run(tmp_path / "run")[0].weights, kt.load_run(unbroken)[0].weights, strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_finished_run_can_be_resumed_for_more_epochs(tables, unbroken, tmp_path):
    shorter = {**tables, "training": {**tables["training"], "epochs": 1}}
    kt.train(kt.read_tables(shorter), tmp_path / "run", say=lambda _: None)
    config = kt.read_tables(tables)
    kt.train(config, tmp_path / "run", resume=True, say=lambda _: None)
    assert read_log(tmp_path / "run")[-1] == pytest.approx(
        read_log(unbroken)[-1], abs=1e-5, nan_ok=True
    )


def test_resuming_what_is_done_leaves_it_as_it_is(tables, unbroken):
    def state():
        model = kt.load_run(unbroken)[0]
        return read_log(unbroken), [*model.get_weights(), *map(np.array, model.optimizer.variables)]

    before = state()
    kt.train(kt.read_tables(tables), unbroken, resume=True, say=lambda _: None)
    after = state()
    np.testing.assert_equal(after[0], before[0])
    for one, other in zip(before[1], after[1], strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_run_directory_in_use_is_refused_without_resume(tables, unbroken):
    with pytest.raises(kt.InputError, match="Add --resume"):
        kt.train(kt.read_tables(tables), unbroken)


def test_a_run_is_not_resumed_with_another_config(tables, unbroken):
    other = {**tables, "model": {**tables["model"], "d_ff": 64}}
    with pytest.raises(kt.InputError, match=r"model\.d_ff=32, but the config says 64"):
        kt.train(kt.read_tables(other), unbroken, resume=True)


def test_a_run_is_not_resumed_with_other_data(tables, unbroken, tmp_path):
    for name in ("config.toml", "tokenizer.model", "checkpoints"):
        (tmp_path / "run").mkdir(exist_ok=True)
        os.symlink(unbroken / name, tmp_path / "run" / name)
    files = [Path(tables["data"][name]) for name in ("train_source", "train_target")]
    before = [file.read_bytes() for file in files]
    try:
        for file, text in zip(files, before, strict=True):
            file.write_bytes(2 * text)
        with pytest.raises(kt.InputError, match="the training data has changed"):
            kt.train(kt.read_tables(tables), tmp_path / "run", resume=True, say=lambda _: None)
    finally:
        for file, text in zip(files, before, strict=True):
            file.write_bytes(text)


def test_a_run_killed_while_it_wrote_its_first_files_can_be_resumed(tables, tmp_path):
    (tmp_path / ".config.part.toml").write_text("[mod")
    shorter = {**tables, "training": {**tables["training"], "epochs": 1}}
    kt.train(kt.read_tables(shorter), tmp_path, resume=True, say=lambda _: None)
    assert (tmp_path / "model.keras").exists()


def test_a_directory_of_other_files_is_left_alone(tables, tmp_path):
    (tmp_path / "thesis.txt").write_text("five years of work")
    with pytest.raises(kt.InputError, match="not empty and not a run"):
        kt.train(kt.read_tables(tables), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def starting_from(run_dir, tables, **model):
    training = tables["training"] | {
        "start_from": str(run_dir), "epochs": 1, "peak_learning_rate": 1e-12
    }  # fmt: skip
    return kt.read_tables(tables | {"training": training, "model": tables["model"] | model})


def test_a_run_can_begin_with_the_weights_and_the_vocabulary_of_another(tables, unbroken, tmp_path):
    fewer = {name: str(tmp_path / Path(file).name) for name, file in tables["data"].items()
             if name.startswith("train_")}  # fmt: skip
    for name, file in fewer.items():
        lines = Path(tables["data"][name]).read_text("utf-8").splitlines(keepends=True)
        Path(file).write_text("".join(lines[:100]), "utf-8")
    config = starting_from(unbroken, tables | {"data": tables["data"] | fewer}, dropout=0.2)
    model = kt.train(config, tmp_path / "run", say=lambda _: None)
    for weight, before in zip(model.weights, kt.load_run(unbroken)[0].weights, strict=True):
        np.testing.assert_allclose(weight, before, atol=1e-6)
    vocabularies = [run / "tokenizer.model" for run in (tmp_path / "run", unbroken)]
    assert vocabularies[0].read_bytes() == vocabularies[1].read_bytes()


def test_a_run_does_not_begin_with_a_vocabulary_of_another_kind(tables, unbroken, tmp_path):
    kind = kt.read_tables(tables).tokenizer.kind
    other = tables | {"tokenizer": {"kind": "word" if kind != "word" else "bpe"}}
    with pytest.raises(kt.InputError, match=f"start_from: its vocabulary is a {kind} one"):
        kt.train(starting_from(unbroken, other), tmp_path / "run", say=lambda _: None)
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_begin_with_the_weights_of_another_model(tables, unbroken, tmp_path):
    with pytest.raises(kt.InputError, match=r"start_from: .* another model"):
        kt.train(starting_from(unbroken, tables, d_ff=48), tmp_path / "run", say=lambda _: None)
    assert not (tmp_path / "run").exists()


def test_mixed_precision_trains(tables, tmp_path):
    mixed = {
        **tables,
        "training": {**tables["training"], "epochs": 2, "precision": "mixed_bfloat16"},
    }
    kt.train(kt.read_tables(mixed), tmp_path / "run", say=lambda _: None)
    log = read_log(tmp_path / "run")
    assert log[1]["loss"] < log[0]["loss"]


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "weights.npz"
    path.write_text("old")

    def fail(part):
        part.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_of_another_model_is_refused(unbroken):
    model = kt.Transformer(kt.ModelConfig(9, d_model=8, d_ff=8, num_heads=2))
    checkpoints = Checkpoints(unbroken / "checkpoints")
    with pytest.raises(kt.InputError, match="of another model"):
        checkpoints.restore_weights(model, checkpoints.last())


def test_freed_memory_is_kept_where_the_c_library_can_be_asked_to():
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")


def test_parts_of_a_batch_share_the_cores(monkeypatch):
    for name in ("TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    share_cores(1)
    assert "TF_NUM_INTEROP_THREADS" not in os.environ
    share_cores(2)
    assert os.environ["TF_NUM_INTEROP_THREADS"] == "2"
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == str(max(1, usable_cores() // 2))
    share_cores(4)
    assert os.environ["TF_NUM_INTEROP_THREADS"] == "2"
