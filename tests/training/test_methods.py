"""Whole runs with the methods of the config: what each does to a run."""

import contextlib
import csv
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tomli_w

import keras_transformer as kt
from keras_transformer.__main__ import main
from keras_transformer.config import TrainingConfig
from keras_transformer.data.batches import Batches
from keras_transformer.data.corpus import read_lines, read_pairs
from keras_transformer.data.dates import write_dates
from keras_transformer.evaluation import score
from keras_transformer.training.callbacks import Stopped, TimeLimit
from keras_transformer.training.checkpoint import Checkpoints
from keras_transformer.training.distillation import distill
from keras_transformer.training.log import Log, read_log
from keras_transformer.training.preparation import compile_objective, make_schedule
from keras_transformer.training.progress import Progress, duration
from keras_transformer.training.target_input import gold_probability
from keras_transformer.training.validation import Validation, is_stale


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    data = tmp_path_factory.mktemp("data")
    write_dates(data, {"train": 120, "validation": 20})
    return {
        "model": dict(d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1),
        "tokenizer": dict(kind="char", vocabulary_size=300),
        "data": dict(
            train_source=str(data / "train.text"),
            train_target=str(data / "train.iso"),
            validation_source=str(data / "validation.text"),
            validation_target=str(data / "validation.iso"),
            tokens_per_batch=1024,
        ),
        # Without BLEU, whose search takes longer to compile than the rest, unless a test is of it.
        "training": dict(epochs=3, warmup_steps=10, bleu_tokenize="char", bleu_epochs=0),
    }


def run(tables, run_dir, say=lambda _: None, resume=False, **training):
    tables = {**tables, "training": {**tables["training"], **training}}
    kt.train(kt.read_tables(tables), run_dir, resume, say)
    return kt.load_run(run_dir)[0].get_weights()


def weights_at(run_dir, path):
    """The weights of a checkpoint."""
    model, _ = kt.load_run(run_dir)
    Checkpoints(run_dir / "checkpoints").restore_weights(model, path)
    return model.get_weights()


def assert_same(one, other, **options):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, **{"atol": 1e-6, **options})


def test_the_average_is_the_mean_of_the_last_checkpoints(tables, tmp_path):
    found = run(tables, tmp_path / "run", final_weights="average", average_checkpoints=2)
    last = Checkpoints(tmp_path / "run" / "checkpoints").paths()[-2:]
    two = [weights_at(tmp_path / "run", path) for path in last]
    assert_same(found, [(a + b) / 2 for a, b in zip(*two, strict=True)])
    with pytest.raises(AssertionError):
        assert_same(found, two[1])


def test_an_average_leaves_what_is_not_trained_as_the_last_checkpoint_has_it(tables, tmp_path):
    """Random features that are drawn anew in every pass: their mean would be no features."""
    model = {**tables["model"], "encoder_heads": "performer(redraw=1)"}
    average = dict(final_weights="average", average_checkpoints=2, epochs=2)
    run({**tables, "model": model}, tmp_path / "run", **average)
    last = Checkpoints(tmp_path / "run" / "checkpoints").last()
    trained, _ = kt.load_run(tmp_path / "run")
    drawn = [weight for weight in trained.non_trainable_variables if weight.dtype == "float32"]
    found = list(map(np.array, drawn))
    Checkpoints(tmp_path / "run" / "checkpoints").restore_weights(trained, last)
    assert found
    assert_same(found, list(map(np.array, drawn)))


def test_a_training_that_diverges_says_so_and_leaves_no_checkpoint(tables, tmp_path, monkeypatch):
    loss = kt.Objective.compute_loss
    monkeypatch.setattr(
        kt.Objective, "compute_loss", lambda *args, **kwargs: loss(*args, **kwargs) * float("nan")
    )
    metrics = kt.Objective.get_metrics_result
    monkeypatch.setattr(
        kt.Objective, "get_metrics_result", lambda self: metrics(self) | {"loss": float("nan")}
    )
    with pytest.raises(kt.InputError, match=r"loss of epoch 1 is nan.*peak_learning_rate"):
        run(tables, tmp_path / "run", epochs=2)
    assert not Checkpoints(tmp_path / "run" / "checkpoints").paths()


def test_as_many_checkpoints_are_kept_as_are_averaged(tables, tmp_path):
    options = dict(final_weights="average", average_checkpoints=3, keep_checkpoints=1)
    run(tables, tmp_path / "run", **options)
    assert len(Checkpoints(tmp_path / "run" / "checkpoints").paths()) == 3


def test_the_moving_average_is_the_one_of_its_definition(tables, tmp_path):
    """With a momentum of 0 it is the last weights; else it lags behind them."""
    last = run(tables, tmp_path / "last", epochs=1)
    assert_same(
        run(tables, tmp_path / "ema0", epochs=1, final_weights="ema", ema_momentum=0.0), last
    )

    config = kt.read_tables(
        {**tables, "training": {"final_weights": "ema", "ema_momentum": 0.75, "warmup_steps": 1}}
    )
    objective = compile_objective(config)
    weight = objective.transformer.trainable_variables[0]
    average = None
    ids = np.random.default_rng(1).integers(4, 99, (4, 6)).astype("int32")
    for _ in range(3):
        objective.train_on_batch({"source": ids, "target": ids, "labels": ids})
        now = np.array(weight)
        average = now if average is None else 0.75 * average + 0.25 * now
    objective.optimizer.finalize_variable_values(objective.transformer.trainable_variables)
    np.testing.assert_allclose(np.array(weight), average, atol=1e-6)
    assert np.abs(average - now).max() > 1e-3


def test_a_run_with_a_moving_average_goes_on_with_the_weights_and_not_with_their_average(
    tables, tmp_path
):
    ema = dict(final_weights="ema", ema_momentum=0.9)
    unbroken = run(tables, tmp_path / "unbroken", epochs=2, **ema)
    run(tables, tmp_path / "run", epochs=1, **ema)
    more = {**tables, "training": {**tables["training"], "epochs": 2, **ema}}
    model = kt.train(kt.read_tables(more), tmp_path / "run", resume=True, say=lambda _: None)
    assert_same(model.get_weights(), unbroken)


@pytest.mark.parametrize("tied", [True, False])
def test_muon_moves_a_matrix_in_all_directions_alike_and_leaves_the_rest_to_adam(tables, tied):
    model = {**tables["model"], "tie_output": tied, "cross_attention": "mix"}
    model["encoder_layers"] = 2  # or there would be nothing to mix
    training = {"optimizer": "muon", "warmup_steps": 1, "peak_learning_rate": 0.01}
    config = kt.read_tables({**tables, "model": model, "training": training})
    objective = compile_objective(config)
    weights = {weight.path: weight for weight in objective.transformer.trainable_variables}
    before = {path: np.array(weight) for path, weight in weights.items()}
    ids = np.random.default_rng(1).integers(4, 99, (4, 6)).astype("int32")
    objective.train_on_batch({"source": ids, "target": ids, "labels": ids})
    moved = {path: np.array(weight) - before[path] for path, weight in weights.items()}
    for path, move in moved.items():
        if "/layer_" in path and path.endswith("kernel"):
            directions = np.linalg.svd(move, compute_uv=False)
            # Five iterations leave the smallest ones behind; those of a gradient fall off at once.
            assert np.median(directions) / directions.max() > 0.5, path
            # As large as Adam's are in training: 0.2 of the learning rate.
            assert 0.1 < np.sqrt(np.mean(move**2)) / 0.01 < 0.3, path
        else:
            # Adam's first update is of the learning rate, where there is a gradient.
            place = np.abs(move) > 0.001
            assert place.any(), path
            np.testing.assert_allclose(np.abs(move[place]), 0.01, rtol=0.05, err_msg=path)


def test_a_run_with_muon_goes_on_as_if_it_had_not_stopped(tables, tmp_path):
    """And with a probability of the gold tokens that falls with the batches seen."""
    methods = dict(target_input="two_pass", sampling_c=0.1)
    tables = {**tables, "methods": methods}
    unbroken = run(tables, tmp_path / "unbroken", epochs=2, optimizer="muon")
    run(tables, tmp_path / "run", epochs=1, optimizer="muon")
    more = {**tables, "training": {**tables["training"], "epochs": 2, "optimizer": "muon"}}
    model = kt.train(kt.read_tables(more), tmp_path / "run", resume=True, say=lambda _: None)
    assert_same(model.get_weights(), unbroken)


def test_a_cool_down_ends_with_the_last_epoch(tables):
    """Three epochs of eight batches, two of which are one update: the last of twelve is no zero."""
    training = dict(epochs=3, cooldown_epochs=1, accumulate_batches=2, warmup_steps=2)
    config = kt.read_tables({**tables, "training": training})
    objective = compile_objective(config, make_schedule(config, batches=8))
    optimizer, rates = objective.optimizer, []
    for batch in range(24):
        if batch % 2:  # what this batch's update is made with
            rates.append(float(optimizer.learning_rate))
        optimizer.apply([keras.ops.zeros_like(w) for w in objective.trainable_variables])
    update = np.arange(1, 13)
    expected = (16 * 2) ** -0.5 * np.minimum(update / 2, (2 / update) ** 0.5)
    expected *= [*[1] * 8, 7 / 8, 5 / 8, 3 / 8, 1 / 8]
    np.testing.assert_allclose(rates, expected, rtol=1e-4)


def test_gradients_of_several_batches_are_one_update(tables, tmp_path):
    def iterations(**training):
        given = {**tables, "training": {**tables["training"], **training}}
        model = kt.train(kt.read_tables(given), tmp_path / str(training), say=lambda _: None)
        return int(model.optimizer.iterations)

    batches = iterations(epochs=2)
    assert iterations(epochs=2, accumulate_batches=2) == batches // 2


def test_two_accumulated_halves_are_as_good_as_the_whole():
    ids = np.random.default_rng(1).integers(4, 20, (4, 6)).astype("int32")
    batch, before = {"source": ids, "target": ids, "labels": ids}, []

    def weights(halves):
        keras.utils.set_random_seed(1)
        config = kt.RunConfig(
            kt.ModelConfig(
                20, d_model=8, d_ff=8, num_heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0
            ),
            training=TrainingConfig(
                accumulate_batches=2 if halves else 1, epsilon=1e-3, warmup_steps=1
            ),
        )
        objective = compile_objective(config)
        before[:] = objective.transformer.get_weights()
        for part in [slice(2), slice(2, 4)] if halves else [slice(4)]:
            objective.train_on_batch({name: x[part] for name, x in batch.items()})
        return objective.transformer.get_weights()

    whole = weights(False)
    assert max(np.abs(now - was).max() for now, was in zip(whole, before, strict=True)) > 0.1
    assert_same(weights(True), whole, atol=1e-5)


def test_the_best_epoch_by_bleu_is_the_model(tables, tmp_path, monkeypatch):
    """BLEU is made up here, so that the first of three epochs is the best."""
    made_up = iter([30.0, 10.0, 20.0])
    monkeypatch.setattr(
        "keras_transformer.training.validation.score",
        lambda *_: type("Scores", (), {"bleu": next(made_up)}),
    )
    found = run(tables, tmp_path / "run", final_weights="best", bleu_epochs=1)
    paths = Checkpoints(tmp_path / "run" / "checkpoints").paths()
    assert_same(found, weights_at(tmp_path / "run", paths[0]))
    with open(tmp_path / "run" / "log.csv", newline="") as file:
        assert [float(row["val_bleu"]) for row in csv.DictReader(file)] == [30.0, 10.0, 20.0]


def test_training_stops_when_bleu_gets_no_better(tables, tmp_path, monkeypatch):
    made_up = iter([10.0, 30.0, 20.0, 30.0])
    monkeypatch.setattr(
        "keras_transformer.training.validation.score",
        lambda *_: type("Scores", (), {"bleu": next(made_up)}),
    )
    said = []
    run(tables, tmp_path / "run", said.append, epochs=9, patience=2, bleu_epochs=1)
    assert any("no better BLEU in 2 epochs" in line for line in said)
    with open(tmp_path / "run" / "log.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 4
    again = {
        **tables,
        "training": {**tables["training"], "epochs": 9, "patience": 2, "bleu_epochs": 1},
    }
    kt.train(kt.read_tables(again), tmp_path / "run", resume=True, say=said.append)
    assert "training is done already" in said


def losses(run_dir):
    return [row["loss"] for row in read_log(run_dir / "log.csv")]


def test_r_drop_begins_when_it_is_told(tables, tmp_path):
    model = {**tables["model"], "dropout": 0.3}
    for name, methods in {
        "plain": {}, "late": dict(r_drop=5.0, r_drop_after=1), "always": dict(r_drop=5.0)
    }.items():  # fmt: skip
        run({**tables, "model": model, "methods": methods}, tmp_path / name, epochs=2)
    plain, late, always = (losses(tmp_path / name) for name in ("plain", "late", "always"))
    assert late[0] == pytest.approx(plain[0], rel=1e-5)
    assert late[1] > plain[1] + 0.01  # the passes do not agree
    assert always[0] > plain[0] + 0.01


def test_a_run_ends_when_its_time_is_up(tables, tmp_path, monkeypatch):
    """Epochs of 30 and 30 seconds, then of 10: of nine, five are done in 100 seconds."""
    now = 0
    monkeypatch.setattr(
        "keras_transformer.training.callbacks.time", SimpleNamespace(monotonic=lambda: now)
    )
    schedule = kt.WarmupSchedule(1.0, warmup_steps=1, cooldown_steps=200, total_steps=900)
    progress = Progress(epochs=9, steps=100, tokens=1000)
    limit = TimeLimit(minutes=100 / 60, progress=progress, schedule=schedule, began=0)
    limit.set_model(SimpleNamespace(stop_training=False))
    planned = []
    for epoch, seconds in enumerate([30, 30, 10, 10, 10]):
        assert not limit.model.stop_training
        limit.on_epoch_begin(epoch)
        now += seconds
        limit.on_epoch_end(epoch)
        planned.append(progress.epochs)
        # The cool-down ends with the last epoch there is time for.
        last = 100 * planned[-1] - 1
        assert float(schedule(last)) == pytest.approx((last + 1) ** -0.5 / 200)
    assert planned == [3, 3, 4, 5, 5]
    assert limit.model.stop_training

    said = []
    monkeypatch.undo()
    run(tables, tmp_path / "run", say=said.append, epochs=9, max_minutes=1e-6)
    assert len(losses(tmp_path / "run")) == 1
    assert any("training stops" in line for line in said)


def test_one_slow_epoch_does_not_change_the_plan(monkeypatch):
    now = 0
    monkeypatch.setattr(
        "keras_transformer.training.callbacks.time", SimpleNamespace(monotonic=lambda: now)
    )
    schedule = kt.WarmupSchedule(1.0, warmup_steps=1)
    progress = Progress(epochs=20, steps=100, tokens=1000)
    limit = TimeLimit(10, progress, schedule, began=0)
    limit.set_model(SimpleNamespace(stop_training=False))
    for epoch, seconds in enumerate([20, 20, 20, 20, 100]):
        limit.on_epoch_begin(epoch)
        now += seconds
        limit.on_epoch_end(epoch)
    assert progress.epochs == 5 + (600 - 180) * 5 // 180  # by the mean
    # A run that goes on has the time that is left of it, and plans by it at once.
    progress = Progress(epochs=20, steps=100, tokens=1000)
    TimeLimit(10, progress, schedule, began=now - 540, done=9)
    assert progress.epochs == 10
    # Also where it goes on in the middle of an epoch: 3 epochs of 100 seconds fit into 310.
    schedule = kt.WarmupSchedule(1.0, warmup_steps=1, cooldown_steps=100, total_steps=300)
    progress = Progress(epochs=3, steps=100, tokens=1000)
    TimeLimit(310 / 60, progress, schedule, began=now - 190, done=1.9)
    assert progress.epochs == 3
    assert float(schedule(190)) == float(kt.WarmupSchedule(1.0, warmup_steps=1)(190))
    # One that has begun is finished.
    TimeLimit(150 / 60, progress, schedule, began=now - 120, done=1.2)
    assert progress.epochs == 2


def test_a_run_whose_time_is_up_has_no_more_of_it_when_it_goes_on(tables, tmp_path):
    options = dict(epochs=9, max_minutes=1e-6)
    run(tables, tmp_path / "run", **options)
    said = []
    run(tables, tmp_path / "run", said.append, resume=True, **options)
    assert "training is done already" in said
    assert len(losses(tmp_path / "run")) == 1


def test_without_time_for_bleu_the_best_weights_are_the_last(tables, tmp_path):
    said = []
    options = dict(epochs=9, max_minutes=1e-6, final_weights="best", bleu_epochs=2)
    found = run(tables, tmp_path / "run", said.append, **options)
    (last,) = Checkpoints(tmp_path / "run" / "checkpoints").paths()
    assert_same(found, weights_at(tmp_path / "run", last))
    assert any("no time for BLEU" in line for line in said)


def test_patience_counts_epochs_without_a_better_score():
    nan = float("nan")
    assert not is_stale([1, 2, 3], 2)
    assert is_stale([1, 3, 2, 3], 2)
    assert not is_stale([1, 3, 2], 2)
    assert is_stale([3, nan, 2, nan], 3)
    assert not is_stale([3, 2, 1], 0)
    assert not is_stale([nan, nan, nan], 2)


def test_bleu_of_the_validation_data_is_that_of_greedy_search(tables, tmp_path):
    said = []
    run(tables, tmp_path / "run", said.append, epochs=1, sample_lines=1, bleu_epochs=1)
    model, tokenizer = kt.load_run(tmp_path / "run")
    data = tables["data"]
    pairs = list(read_pairs((data["validation_source"], data["validation_target"])))
    sources, references = map(list, zip(*pairs, strict=True))
    translations = kt.Translator(model, tokenizer, kt.DecodingConfig(beams=1))(sources)
    with open(tmp_path / "run" / "log.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert float(row["val_bleu"]) == pytest.approx(score(translations, references, "char").bleu)
    assert any(f"model:  {translations[0]}" in line and sources[0] in line for line in said)


def test_bleu_is_measured_every_few_epochs_and_the_log_says_so(tables, tmp_path):
    run(tables, tmp_path / "run", epochs=2, bleu_epochs=2)
    with open(tmp_path / "run" / "log.csv", newline="") as file:
        assert [row["val_bleu"] == "nan" for row in csv.DictReader(file)] == [True, False]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_saves_and_says_how_to_go_on(tables, tmp_path, number):
    long = {**tables, "training": {**tables["training"], "epochs": 500}}
    (tmp_path / "config.toml").write_text(tomli_w.dumps(long), "utf-8")
    process = subprocess.Popen(
        [
            sys.executable, "-m", "keras_transformer", "train", str(tmp_path / "config.toml"),
            "--run-dir", str(tmp_path / "run"), "training.keep_checkpoints=2",
        ],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    while not list((tmp_path / "run").glob("checkpoints/step-*")):
        assert process.poll() is None, "it ended before it could be asked to stop"
        time.sleep(0.1)
    process.send_signal(number)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 130
    assert f"train {tmp_path / 'config.toml'} training.keep_checkpoints=2" in output
    assert "--resume" in output.splitlines()[-1]
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    position = checkpoints.position(checkpoints.last())
    done = position["epoch"] * position["steps"] + position["step"]
    assert checkpoints.last().stem == f"step-{done:08d}"


def test_the_curves_are_drawn(tables, tmp_path):
    run(tables, tmp_path / "run", epochs=2)
    picture = (tmp_path / "run" / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    run({**tables, "data": {k: v for k, v in tables["data"].items() if "val" not in k}},
        tmp_path / "without", epochs=1)  # fmt: skip
    assert (tmp_path / "without" / "curves.png").exists()


def test_progress_tells_speed_and_time_left(monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("keras_transformer.training.progress.time.monotonic", lambda: next(clock))
    said = []
    progress = Progress(epochs=3, steps=4, tokens=400, say=said.append, every=15)
    progress.set_params({"steps": 4, "epochs": 3})
    progress.on_train_begin()
    progress.on_epoch_begin(0)  # at 0
    for batch in range(4):  # at 10, which counts for nothing, 20, 30, 40
        progress.on_train_batch_end(batch, {"loss": 2.5})
    progress.on_epoch_end(0, {"loss": 2.0, "val_loss": 1.5, "val_bleu": 12.345})  # at 50
    progress.on_test_begin()
    assert said[0] == "epoch 1/3  batch 2/4  loss 2.500  10 tokens/s, ETA 1 min 40 s"
    assert said[-1] == (
        "epoch 1/3: loss 2.000, validation loss 1.500, BLEU 12.35; 50 s, 8 tokens/s, ETA 1 min 47 s"
    )
    alone = Progress(epochs=2, steps=1, tokens=9, say=said.append)
    alone.set_params({"steps": 1, "epochs": 2})
    alone.on_train_begin()
    alone.on_epoch_begin(0)
    alone.on_train_batch_end(0, {"loss": 1.0})
    alone.on_epoch_end(0, {"loss": 1.0})
    assert said[-1] == "epoch 1/2: loss 1.000; 20 s, no speed yet"
    assert duration(3599.6) == "1 h 0 min"


def test_a_log_goes_on_with_the_columns_it_has(tmp_path):
    log = Log(tmp_path / "log.csv")
    log.on_epoch_end(0, {"loss": 3.0})
    log.on_epoch_end(1, {"loss": 2.0, "val_bleu": 5.0, "new": 1.0})
    assert [row["loss"] for row in read_log(tmp_path / "log.csv")] == [3.0, 2.0]
    assert read_log(tmp_path / "log.csv")[1] == {"epoch": 1, "loss": 2.0, "val_bleu": 5.0}


def test_a_stop_leaves_the_average_as_it_would_have_been(tables, tmp_path):
    """Its checkpoint is gone when the next one is written.

    With batches that accumulate, so that a stop may come where there is no update of its own.
    """
    average = dict(
        final_weights="average", average_checkpoints=2, keep_checkpoints=2, epochs=3,
        accumulate_batches=2,
    )  # fmt: skip
    unbroken = run(tables, tmp_path / "unbroken", **average)
    given = {**tables, "training": {**tables["training"], **average}}
    batches = (
        2
        * Checkpoints(tmp_path / "unbroken/checkpoints").position(
            Checkpoints(tmp_path / "unbroken/checkpoints").last()
        )["steps"]
    )
    # In the last epoch: asked after every batch, and at the end of the first two epochs.
    config, asked = kt.read_tables(given), iter([*[None] * batches, signal.SIGTERM])

    @contextlib.contextmanager
    def asked_to_stop():
        yield lambda: next(asked, None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras_transformer.training.run.asked_to_stop", asked_to_stop)
        with pytest.raises(Stopped):
            kt.train(config, tmp_path / "run", say=lambda _: None)
        *epochs, stopped = Checkpoints(tmp_path / "run" / "checkpoints").paths()
        assert len(epochs) == 2
        found = kt.train(config, tmp_path / "run", resume=True, say=lambda _: None)
    assert not stopped.exists()
    assert_same(found.get_weights(), unbroken)


def test_a_corpus_of_several_windows_has_every_pair_once(tables):
    files = tables["data"]["train_source"], tables["data"]["train_target"]
    pairs = list(read_pairs(files))
    tokenizer = kt.Tokenizer.learn([line for pair in pairs for line in pair], 300, "char")
    batches = Batches(files, tokenizer, 512, 64, seed=1, shuffle_pairs=50)
    found = [
        tokenizer.decode([[one for one in row.tolist() if one > 2]])[0]
        for _, labels in batches.epoch(2)
        for row in np.array(labels)
    ]
    assert sorted(found) == sorted(target for _, target in pairs)
    assert len(list(batches.epoch(0))) == batches.steps


def test_sentences_are_split_anew_every_epoch_and_say_the_same(tables):
    files = tables["data"]["train_source"], tables["data"]["train_target"]
    lines = [line for file in files for line in read_lines(file)]
    tokenizer = kt.Tokenizer.learn(lines, 200, "bpe")
    options = dict(tokens_per_batch=512, max_tokens=64, seed=1)
    plain = Batches(files, tokenizer, **options)
    drawn = Batches(files, tokenizer, **options, regularization=0.3)
    assert drawn.steps == plain.steps

    def sources(batches):
        rows = [row for inputs, _ in batches.epoch(0) for row in np.array(inputs["source"])]
        return [[one for one in row.tolist() if one > 2] for row in rows]

    one, other, usual = sources(drawn), sources(drawn), sources(plain)
    assert len(one) == drawn.pairs
    assert sorted(tokenizer.decode(one)) == sorted(tokenizer.decode(usual))
    assert one != other
    assert sum(map(len, one)) > 1.1 * sum(map(len, usual))


@pytest.mark.parametrize("regularized", ["source", "target"])
def test_one_side_alone_can_be_split_anew(tables, regularized):
    files = tables["data"]["train_source"], tables["data"]["train_target"]
    lines = [line for file in files for line in read_lines(file)]
    tokenizer = kt.Tokenizer.learn(lines, 200, "bpe")
    options = dict(tokens_per_batch=512, max_tokens=64, seed=1)
    drawn = Batches(files, tokenizer, **options, regularization=0.3, regularized=regularized)
    tokens = {"source": 0, "target": 0}
    for inputs, labels in drawn.epoch():
        tokens["source"] += int((np.array(inputs["source"]) > 0).sum())
        tokens["target"] += int((np.array(labels) > 0).sum())
    usual = {
        side: sum(len(ids) + 1 for ids in tokenizer.encode(list(read_lines(file))))
        for side, file in zip(tokens, files, strict=True)
    }
    other = {"source": "target", "target": "source"}[regularized]
    assert tokens[other] == usual[other]
    assert tokens[regularized] > 1.1 * usual[regularized]


def test_word_alignments_become_alignments_of_tokens(tmp_path):
    (tmp_path / "pairs.tsv").write_text("the dog barks\tder hund bellt\nhi\thallo\n", "utf-8")
    (tmp_path / "links").write_text("0-0 1-1 2-2\n\n", "utf-8")
    lines = (tmp_path / "pairs.tsv").read_text("utf-8").split()
    tokenizer = kt.Tokenizer.learn(lines, 40, "char")
    files = (str(tmp_path / "pairs.tsv"),)
    batches = Batches(files, tokenizer, 512, 32, alignments=str(tmp_path / "links"))
    ((inputs, labels),) = batches.epoch()  # sorted by length: the longer pair is the last
    source = tokenizer.pieces(np.array(inputs["source"])[1])
    target = tokenizer.pieces(np.array(labels)[1])
    found = np.array(inputs["alignments"])[1]
    assert not np.array(inputs["alignments"])[0].any()
    words = [
        [sum(piece == "▁" for piece in side[: n + 1]) for n in range(len(side))]
        for side in (target, source)
    ]
    for t, s in np.ndindex(found.shape):
        both = target[t] not in ("</s>", "<pad>") and source[s] not in ("</s>", "<pad>")
        assert found[t, s] == (both and words[0][t] == words[1][s])
    assert found.any()


def test_links_of_words_that_the_tokenizer_splits_otherwise_are_left_out(tmp_path):
    """An acute accent is normalised to a blank and an accent, and \u200b to a blank."""
    pairs = "it\u00b4s a dog\tein hund\nthe dog\tder hund\na \u200b dog\tein hund\n"
    (tmp_path / "pairs.tsv").write_text(pairs, "utf-8")
    (tmp_path / "links").write_text("1-0 2-1\n0-0 1-1\n0-0 2-1\n", "utf-8")
    tokenizer = kt.Tokenizer.learn(pairs.split(), 40, "char")
    files = (str(tmp_path / "pairs.tsv"),)
    batches = Batches(files, tokenizer, 512, 32, alignments=str(tmp_path / "links"))
    assert batches.unaligned == 2
    found = {
        tokenizer.decode([source[source != 2]])[0]: given.any()
        for (inputs, _) in batches.epoch()
        for source, given in zip(
            np.array(inputs["source"]), np.array(inputs["alignments"]), strict=True
        )
    }
    assert sorted(found.values()) == [False, False, True]
    assert found["the dog"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-0\n", "has 1 lines"),
        ("0-0\n1:1\n", "line 2: '1:1' is no link"),
        ("0-0\n0-9\n", "line 2: '0-9' is beyond the"),
    ],
)
def test_faulty_alignments_are_refused(text, message, tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\nc\td\n", "utf-8")
    (tmp_path / "links").write_text(text, "utf-8")
    tokenizer = kt.Tokenizer.learn(["a b c d"], 20, "char")
    with pytest.raises(kt.InputError, match=message):
        Batches((str(tmp_path / "pairs.tsv"),), tokenizer, alignments=str(tmp_path / "links"))


def test_a_run_learns_with_all_methods_at_once(tables, tmp_path):
    links = tmp_path / "links"
    links.write_text("0-0\n" * 120, "utf-8")
    given = {
        **tables,
        "tokenizer": dict(kind="bpe", vocabulary_size=200),
        "data": {**tables["data"], "train_alignments": str(links)},
        "model": {**tables["model"], "encoder_layers": 3},  # deep encoder, shallow decoder
        "methods": dict(
            r_drop=1.0, target_input="two_pass", guided_attention=0.5, guidance="alignments",
            source_word_dropout=0.1, target_word_dropout=0.1, subword_regularization=0.1,
        ),
    }  # fmt: skip
    kt.train(kt.read_tables(given), tmp_path / "run", say=lambda _: None)
    with open(tmp_path / "run" / "log.csv", newline="") as file:
        losses = [float(row["val_loss"]) for row in csv.DictReader(file)]
    assert losses[-1] < losses[0]


def test_a_student_learns_from_what_its_teacher_writes(tables, tmp_path, capsys):
    run(tables, tmp_path / "teacher", epochs=1)
    pairs = tmp_path / "pairs.tsv"
    command = ["distill", str(tmp_path / "teacher"), "decoding.beams=2", "--output", str(pairs)]
    assert main(command) == 0
    assert "120 of 120 lines" in capsys.readouterr().out
    sources = list(read_lines(tables["data"]["train_source"]))
    written = [line.split("\t") for line in pairs.read_text("utf-8").splitlines()]
    assert [source for source, _ in written] == sources
    model, tokenizer = kt.load_run(tmp_path / "teacher")
    translator = kt.Translator(model, tokenizer, kt.DecodingConfig(beams=2))
    assert [target for _, target in written] == translator(sources)
    assert main([*command, "--resume"]) == 0
    assert "are there already" in capsys.readouterr().out
    assert main(command) != 0  # or another teacher's would be taken for this one's
    assert "--resume" in capsys.readouterr().err
    student = {**tables, "data": {**tables["data"], "train": str(pairs)}}
    del student["data"]["train_source"], student["data"]["train_target"]
    run(student, tmp_path / "student", epochs=2)
    learned = losses(tmp_path / "student")
    assert learned[1] < learned[0]


def test_a_broken_off_distillation_goes_on(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tA\nb\tB\nc\t", "utf-8")  # killed while it wrote the third
    asked = []

    def teacher(lines):
        asked.extend(lines)
        return [line.upper() for line in lines]

    everything = ["a", "b", "c", "d"]
    assert distill(teacher, everything, path, resume=True, say=lambda _: None) == 4
    assert asked == ["c", "d"]
    assert path.read_text("utf-8") == "a\tA\nb\tB\nc\tC\nd\tD\n"
    with pytest.raises(kt.InputError, match="holds other pairs"):
        distill(teacher, ["x"], path, resume=True)
    with pytest.raises(kt.InputError, match="Add --resume"):
        distill(teacher, everything, path)


def test_the_shipped_configs_can_be_read():
    directory = os.path.join(os.path.dirname(__file__), "..", "..", "configs")
    names = [name for name in os.listdir(directory) if name.endswith(".toml")]
    assert {"multi30k_tiny.toml", "multi30k_published.toml"} <= set(names)
    for name in names:
        kt.read_config(os.path.join(directory, name))


@pytest.mark.parametrize(
    ("table", "key", "value", "message"),
    [
        ("methods", "target_input", "two_passes", "Did you mean two_pass"),
        ("methods", "sampling_decay", "exp", "Choose"),
        ("methods", "source_word_dropout", 1.0, "below 1"),
        ("training", "final_weights", "averaged", "Did you mean average"),
        ("training", "patience", -1, "at least 0"),
        ("training", "cooldown_epochs", 11, "more than training.epochs=10: set both"),
    ],
)
def test_wrong_methods_are_refused(table, key, value, message):
    with pytest.raises(kt.InputError, match=message):
        kt.read_tables({table: {key: value}})


def test_what_goes_by_bleu_needs_bleu():
    with pytest.raises(kt.InputError, match="before the next BLEU"):
        kt.read_tables({"training": {"patience": 1, "bleu_epochs": 2}})
    with pytest.raises(kt.InputError, match="go by BLEU"):
        kt.read_tables({"training": {"patience": 3, "bleu_epochs": 0}})
    with pytest.raises(kt.InputError, match=r"final_weights goes by BLEU on validation data"):
        kt.read_tables({"training": {"final_weights": "best"}})


def test_methods_that_would_do_nothing_are_refused():
    with pytest.raises(kt.InputError, match="R-Drop would never begin"):
        kt.read_tables({"methods": {"r_drop": 5.0, "r_drop_after": 10}})
    with pytest.raises(kt.InputError, match="below 1, for k\\^i to fall"):
        kt.read_tables({"methods": {"sampling_decay": "exponential", "sampling_k": 1.0}})
    guided = {"guided_attention": 1.0, "guidance": "alignments"}
    with pytest.raises(kt.InputError, match="train_alignments"):
        kt.read_tables({"methods": guided})
    with pytest.raises(kt.InputError, match="one token of unknown words in a row"):
        kt.read_tables(
            {
                "methods": guided,
                "tokenizer": {"kind": "word"},
                "data": {"train": "pairs.tsv", "train_alignments": "links"},
            }
        )


@pytest.mark.parametrize("decay", ["linear", "exponential", "inverse_sigmoid"])
def test_every_decay_begins_with_the_gold_target_and_leaves_it(decay):
    methods = kt.MethodsConfig(sampling_decay=decay)
    after = [
        float(gold_probability(batches, decay, methods.decay_k, methods.sampling_c, 0.0))
        for batches in (0, 8_000, 50_000)
    ]
    assert after[0] > 0.99 > after[1] > after[2]
    assert after[2] < 0.01


def test_the_validation_data_is_not_needed_for_a_callback_that_is_not_due():
    progress = SimpleNamespace(epochs=10)
    validation = Validation([("a", "b")], None, TrainingConfig(bleu_epochs=2), progress, None)
    validation.on_epoch_begin(0)
    validation.on_test_end()
    logs = {}
    validation.on_epoch_end(0, logs)
    assert np.isnan(logs["val_bleu"])
