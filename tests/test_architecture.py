"""The order of the house: a module imports only from stages to its left."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "keras_transformer"

# Left to right as text flows. A row may import from itself and from rows above it.
STAGES = [
    {"errors", "masks", "version"},
    {"text"},
    {"data"},
    {"attention", "layers"},
    {"config"},
    {"config_file"},
    {"models"},
    {"generation", "evaluation", "plots"},
    {"training", "exporting"},
    {"demo", "plots_command"},
    {"__main__", "__init__"},
]
# Nothing of TensorFlow in the layers, the models, their training and their search: those run on
# any backend of Keras.
MAY_IMPORT_TENSORFLOW = {"text", "data", "exporting"}


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).parts[0].removesuffix(".py"), path


def imports(path):
    """The absolute names of all that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def stage_of(part):
    (stage,) = [number for number, parts in enumerate(STAGES) if part in parts]
    return stage


@pytest.mark.parametrize(
    ("part", "path"), list(modules()), ids=lambda value: str(getattr(value, "stem", value))
)
def test_a_module_imports_only_from_stages_to_its_left(part, path):
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "keras_transformer":
            assert stage_of(rest[0]) <= stage_of(part), f"{path.name} imports {name}"
        if top in ("tensorflow", "tensorflow_text", "tensorflow_serving"):
            assert part in MAY_IMPORT_TENSORFLOW, f"{path.name} imports {name}"


SERVING = ROOT.parent / "serving"


@pytest.mark.parametrize(
    ("package", "may_import"),
    [
        (
            "server/keras_transformer_server",
            {"aiohttp", "google", "grpc", "grpc_health", "grpc_reflection", "numpy",
             "prometheus_client", "tensorflow", "tensorflow_serving", "tensorflow_text",
             "keras_transformer_client", "keras_transformer_server"},
        ),
        (
            "client/keras_transformer_client",
            {"google", "grpc", "numpy", "keras_transformer_client"},
        ),
    ],
)  # fmt: skip
def test_server_and_client_know_nothing_of_the_models(package, may_import):
    paths = list((SERVING / package).glob("*.py"))
    assert paths
    for path in paths:
        tops = {name.partition(".")[0] for name in imports(path)}
        assert tops <= may_import | sys.stdlib_module_names, path


def test_there_is_no_room_for_odds_and_ends():
    names = {path.stem for path in ROOT.rglob("*")}
    assert not names & {"utils", "helpers", "common", "misc", "tools"}
