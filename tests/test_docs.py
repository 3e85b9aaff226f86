"""What the documentation says, held against the code."""

import ast
import contextlib
import dataclasses
import importlib.util
import io
import itertools
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from google.protobuf import text_format
from keras_transformer_client.__main__ import _parser as client_parser
from keras_transformer_server.settings import Settings
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

import keras_transformer as kt
from keras_transformer.__main__ import _parser as command_parser
from keras_transformer.config_file import TABLES

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "BUILD.md", "CHANGELOG.md", "colab/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "serving").rglob("README.md")),
]
BLOCK = re.compile(r"^```(.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = {"", "python", "toml", "json", "yaml", "sh", "proto"}
PARSERS = {"keras-transformer": command_parser(), "keras-transformer-client": client_parser()}
# tensorflow_serving/model_servers/main.cc: the flags that docs and serving/deploy use.
FLAGS = {
    "--port", "--rest_api_port", "--model_config_file", "--model_config_file_poll_wait_seconds",
    "--enable_batching", "--batching_parameters_file", "--monitoring_config_file",
    "--tensorflow_intra_op_parallelism", "--tensorflow_inter_op_parallelism",
    "--allow_version_labels_for_unavailable_models", "--enable_model_warmup", "--ssl_config_file",
    "--xla_cpu_compilation_enabled",
}  # fmt: skip


def name_of(path):
    return str(path.relative_to(ROOT))


def prose_of(page):
    return BLOCK.sub("", page.read_text("utf-8"))


def blocks(language):
    """The code blocks of a language in all pages, for parametrize."""
    return [
        pytest.param(block[2], id=f"{name_of(page)}:{number}")
        for page in PAGES
        for number, block in enumerate(BLOCK.finditer(page.read_text("utf-8")), start=1)
        if block[1] == language
    ]


# Pages.


def links(page):
    text = re.sub(r"`[^`\n]*`", "", prose_of(page))
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text)
    return [link for link in found if not link.startswith(("http://", "https://"))]


def anchors(page):
    """The names that headings get where Markdown is shown."""
    headings = re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_pictures_lead_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_blocks_are_closed_and_of_a_known_language(page):
    text = page.read_text("utf-8")
    found = BLOCK.findall(text)
    assert len(re.findall("^```", text, re.MULTILINE)) == 2 * len(found)
    assert {language for language, _ in found} <= LANGUAGES


@pytest.mark.parametrize("code", blocks("python"))
def test_python_compiles_and_imports_what_there_is(code):
    compile(code, "block", "exec")
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, name.name) for name in node.names), node.module


@pytest.mark.parametrize("code", blocks("json"))
def test_json_can_be_read(code):
    json.loads(code)


@pytest.mark.parametrize("code", blocks("yaml"))
def test_yaml_can_be_read_and_its_probe_be_run(code):
    (probe,) = yaml.safe_load(code).values()
    command, *arguments = probe["exec"]["command"]
    PARSERS[command].parse_args(arguments)


@pytest.mark.parametrize("code", blocks("proto"))
def test_model_configs_can_be_read(code):
    text_format.Parse(code, ModelServerConfig())


@pytest.mark.parametrize("code", blocks("toml"))
def test_toml_is_a_run_or_the_settings_of_a_server(code):
    tables = tomllib.loads(code)
    if tables.keys() <= TABLES.keys():
        kt.read_tables(tables)
    else:
        Settings(**tables)


def script(name):
    """A script of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["write_configuration", "draw_attention", "draw_notebooks"])
def test_pages_are_what_their_scripts_write(name):
    made = script(name)
    assert made.PAGE.read_text("utf-8") == made.page(), "run make docs, or make pictures"


def test_the_pictures_of_notebooks_are_drawn_by_cells_that_there_are():
    for name, kept in script("draw_notebooks").PICTURES.items():
        notebook = json.loads((ROOT / "colab" / f"{name}.ipynb").read_text("utf-8"))
        cells = {cell["id"] for cell in notebook["cells"] if cell["cell_type"] == "code"}
        assert kept.keys() <= cells, name


def test_every_setting_of_the_server_is_on_its_page():
    (block,) = (
        one for one in BLOCK.findall((ROOT / "docs/serving.md").read_text()) if one[0] == "toml"
    )
    assert list(tomllib.loads(block[1])) == [field.name for field in dataclasses.fields(Settings)]


def test_every_signature_is_on_its_page_with_its_inputs_and_outputs(exported):
    part = prose_of(ROOT / "docs/serving.md").partition("## Signatures")[2].partition("###")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", part, re.MULTILINE)
    signatures = exported.load().signatures
    assert [name for name, *_ in rows] == list(signatures)
    for name, inputs, outputs in rows:
        if name in ("start", "step", "decode_ids_compiled"):  # which are told in words
            continue
        _, takes = signatures[name].structured_input_signature
        assert set(re.findall(r"`(\w+)`", inputs)) == set(takes)
        gives = set(signatures[name].structured_outputs) - {"lengths", "truncated"}
        assert gives <= set(re.findall(r"`(\w+)`", outputs))


# Commands.


def commands(code):
    """The commands of shell lines, as lists of words without redirections."""
    for line in code.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command, words = [], iter(lexer)
        for word in words:
            if set(word) <= set("<>"):
                next(words)  # a file
            elif set(word) <= set("|&;()"):
                yield command
                command = []
            elif command or not re.match(r"\w+=", word):  # a variable for the command
                command.append(word)
        if command:
            yield command


def check_ours(words, tmp_path):
    """Parses a command of this project as it would be when it runs."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parsed, rest = PARSERS[words[0]].parse_known_args(words[1:])
    except SystemExit as end:
        if end.code:
            pytest.fail(f"{shlex.join(words)}: {said.getvalue()}")
        return
    overrides = getattr(parsed, "overrides", []) + rest
    (tmp_path / "empty.toml").write_text("")
    kt.read_config(tmp_path / "empty.toml", overrides)


def check_curl(words):
    for flag, value in itertools.pairwise(words):
        if flag == "-d":
            assert json.loads(value).keys() & {"instances", "inputs"}, value


def make_targets():
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("code", blocks("sh"))
def test_commands_are_such_as_there_are(code, tmp_path):
    for words in commands(code):
        if words[0] in PARSERS:
            check_ours(words, tmp_path)
        elif words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= make_targets()
        elif words[0] == "curl":
            check_curl(words)
        elif words[0] == "docker":
            flags = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert flags - {"--rm", "--build"} <= FLAGS
    for path in re.findall(r"(?:(?<![\w/])|(?<=PWD/))(?:serving|configs|docs)/[\w./-]+", code):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_the_text_have_targets_files_and_subcommands(page):
    for code in re.findall(r"`([^`\n]+)`", prose_of(page)):
        words = code.split()
        if words[0] == "make" and len(words) > 1:
            assert words[1] in make_targets(), code
        elif words[0] == "python" and len(words) > 1:
            assert (ROOT / words[1]).exists(), code
        elif words[0] in PARSERS and len(words) > 1:
            (choices,) = (
                action.choices
                for action in PARSERS[words[0]]._actions
                if action.dest == "==SUPPRESS=="
            )
            assert words[1] in choices, code
