"""What the README promises."""

import re
import tomllib
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_transformer as kt

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_example_runs_and_learns(tmp_path, monkeypatch, capsys):
    example = blocks("python")[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(example, names)
    history = names["model"].history.history
    assert history["val_accuracy"][-1] > 0.95
    loaded = keras.saving.load_model("backwards.keras")
    source = np.array([[3, 4, 5, 6, 7, 8]], "int32")
    target = np.array([[1, 8, 7, 6, 5, 4]], "int32")
    written = np.argmax(loaded.predict({"source": source, "target": target}, verbose=0), axis=-1)
    assert written.tolist() == [[8, 7, 6, 5, 4, 3]]


def test_configs_are_such_that_train_takes():
    configs = blocks("toml")
    assert len(configs) == 2
    for config in configs:
        kt.read_tables(tomllib.loads(config))


def test_the_exported_model_is_used_as_it_says(exported, tmp_path, monkeypatch):
    (tmp_path / "models" / "first").mkdir(parents=True)
    (tmp_path / "models" / "first" / "1").symlink_to(exported.directory)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(blocks("python")[1], names)
    assert names["found"]["text"].shape == names["found"]["score"].shape == (1,)


def test_every_signature_is_described(exported):
    part = README.partition("## Export")[2].partition("###")[0]
    described = re.findall(r"^\| (`.*?) \|", part, flags=re.MULTILINE)
    names = re.findall(r"`(\w+)`", " ".join(described))
    assert sorted(names) == sorted(exported.load().signatures)


def test_every_public_name_is_documented_with_an_example_that_the_doctests_run():
    for name in kt.__all__:
        thing = getattr(kt, name)
        assert thing.__doc__, name
        if isinstance(thing, type) and name not in ("Hypothesis", "InputError", "RunConfig"):
            assert ">>>" in thing.__doc__, name


PROSE = re.sub(r"```.*?```", "", README, flags=re.DOTALL)


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)\)", PROSE))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()


def test_the_layers_it_lists_exist():
    parts = README.partition("## Use the parts")[2]
    table = re.findall(r"^\| (`.*?) \|", parts, flags=re.MULTILINE)
    for name in re.findall(r"`(\w+)`", " ".join(table)):
        assert hasattr(kt, name), name
