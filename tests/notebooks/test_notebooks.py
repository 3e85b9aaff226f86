"""The notebooks of colab/: how they are written, and by `make test-notebooks` that they run."""

import ast
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient.exceptions import CellExecutionError, CellTimeoutError

from tests.notebooks.execute import execute
from tests.notebooks.strip import strip
from tests.test_docs import PARSERS, anchors, check_ours, commands

ROOT = Path(__file__).parent.parent.parent
PATHS = sorted((ROOT / "colab").glob("*.ipynb"))
LINES = 25  # of a cell, at most: what is longer is not read
FUNCTION_LINES = 10  # and of a function: what is longer belongs in the package

# What the text says of figures that a cell prints: where they stand, and what holds of them.
OUTCOMES = {
    "quickstart": {"cell-12": (r"exact match: ([\d.]+) %", lambda exact: exact > 90)},
    "translate_your_data": {
        "cell-16": (r"BLEU ([\d.]+)", lambda bleu: bleu > 80),
        "cell-22": (r"BLEU ([\d.]+).*BLEU ([\d.]+)", lambda greedy, drawn: greedy > drawn),
    },
    "transformer_step_by_step": {
        "rnn-train": (
            r"vector: (\d+)%.*attention: (\d+)%", lambda one, each: one < 60 < 90 < each
        ),
        "tagger-train": (
            r"'saw': '(\d+)%', 'it': '(\d+)%'.*'saw': '(\d+)%', 'it': '(\d+)%'",
            lambda saw, it, saw_seen, it_seen: saw < 90 and it < 60 and min(saw_seen, it_seen) > 95,
        ),
        "scheduled-train": (
            r"([\d.]+)% of the whole dates were right, now ([\d.]+)%",
            lambda before, now: now > before,
        ),
        "length-predictor": (
            r"([\d.]+)% of .* in ([\d.]+)%", lambda found, usual: found > usual + 20
        ),
        "parallel-compared": (
            r"at a time: ([\d.]+)%.*at once: ([\d.]+)%.*at the end: ([\d.]+)%",
            lambda in_turn, at_once, cut: min(at_once, cut) > 50,
        ),
    },
    "attention_zoo": {
        "task-train": (
            r"^dot: (\d+)%.*local\(window=8\): (\d+)%.*^local\(window=8\): (\d+)%.*32\): (\d+)%",
            lambda dot, mixed, local, performer: min(dot, mixed) > 95
            and local < 30 and performer > 70,
        ),
        "xl-segments": (
            r"memory: .*\[(0\.) .*alone: .*\[([\d.]+)", lambda memory, alone: alone > memory + 0.1
        ),
    },
}  # fmt: skip

each_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def cells(path, kind):
    notebook = nbformat.reads(path.read_text("utf-8"), as_version=4)
    return [cell.source for cell in notebook.cells if cell.cell_type == kind]


def install_cell():
    return cells(PATHS[0], "code")[0]


@pytest.mark.notebooks
@each_notebook
def test_it_runs_from_top_to_bottom(path, tmp_path, monkeypatch):
    """In a fresh kernel and an empty directory, and finds what its text says.

    IPython's and Jupyter's own files are kept apart.
    """
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    directory = tmp_path / "work"
    directory.mkdir()
    failure = None
    try:
        notebook = execute(path, directory)
    except (CellExecutionError, CellTimeoutError) as error:
        failure = f"{path.name}: {error}"  # which has the cell and its outputs
    if failure:  # not above, where it would be told twice
        pytest.fail(failure, pytrace=False)
    outputs = {cell.id: cell.get("outputs", []) for cell in notebook.cells}
    for cell, (pattern, holds) in OUTCOMES[path.stem].items():
        printed = "".join(output.get("text", "") for output in outputs[cell])
        figures = re.search(pattern, printed, re.DOTALL | re.MULTILINE)
        assert figures, f"{cell}: {printed}"
        assert holds(*map(float, figures.groups())), f"{cell}: {printed}"


def test_there_are_notebooks_and_all_are_in_their_readme():
    listed = re.findall(r"\]\((\w+\.ipynb)\)", (ROOT / "colab" / "README.md").read_text("utf-8"))
    assert sorted(listed) == [path.name for path in PATHS]


@each_notebook
def test_it_is_stripped(path):
    text = path.read_text("utf-8")
    assert text == strip(text), "run make strip-notebooks"


@each_notebook
def test_its_first_code_installs_the_package(path):
    assert cells(path, "code")[0] == install_cell()


@each_notebook
def test_its_cells_are_short_and_leave_logic_to_the_package(path):
    for source in cells(path, "code"):
        assert len(source.splitlines()) <= LINES, source
        for node in ast.walk(ast.parse(TransformerManager().transform_cell(source))):
            assert not isinstance(node, ast.ClassDef), source
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < FUNCTION_LINES, source


@each_notebook
def test_its_links_lead_somewhere(path):
    text = "\n\n".join(cells(path, "markdown"))
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve()
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@each_notebook
def test_the_commands_that_it_tells_are_such_as_there_are(path, tmp_path):
    for text in cells(path, "markdown"):
        for code in re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            for words in commands(code):
                if words[0] in PARSERS:
                    check_ours(words, tmp_path)


# The cell that installs.


def install(monkeypatch, directory, source="", installed=False):
    """Runs the cell and returns what it has told pip to install; None if it has not called it."""

    def version(name):
        assert name == "keras-transformer-seq2seq"
        if not installed:
            raise metadata.PackageNotFoundError(name)

    called = []
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(subprocess, "run", lambda command, check: called.append((command, check)))
    monkeypatch.chdir(directory)
    code = re.sub(r'^SOURCE = ""', f"SOURCE = {source!r}", install_cell(), flags=re.MULTILINE)
    exec(compile(code, "install", "exec"), {})
    if not called:
        return None
    ((command, check),) = called
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    assert check
    return str(command[-1])


def test_nothing_is_installed_where_the_package_is(monkeypatch, tmp_path):
    assert install(monkeypatch, tmp_path, source="git+https://elsewhere", installed=True) is None


@pytest.mark.parametrize("directory", [ROOT, ROOT / "colab"], ids=["above", "beside"])
def test_the_checkout_of_the_notebook_is_installed(monkeypatch, directory):
    assert install(monkeypatch, directory) == str(ROOT)


def test_a_given_address_goes_before_the_checkout(monkeypatch):
    address = "git+https://host/project"
    assert install(monkeypatch, ROOT / "colab", source=address) == address


def test_an_uploaded_directory_is_not_taken_for_a_package_of_that_name(monkeypatch, tmp_path):
    (tmp_path / "keras_transformer").mkdir()
    found = install(monkeypatch, tmp_path, source="keras_transformer")
    assert found == str(tmp_path / "keras_transformer")


def test_without_either_it_is_said_what_to_set(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\n')
    with pytest.raises(RuntimeError, match="Set SOURCE"):
        install(monkeypatch, tmp_path)
