"""What the documentation says, and what is in serving/deploy, held against the code."""

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
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf import wrappers_pb2 as wrappers
from keras_transformer_client.__main__ import _parser as client_parser
from keras_transformer_server.settings import Settings, read_settings
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

import keras_transformer as kt
from keras_transformer.__main__ import _parser as command_parser
from keras_transformer.config_file import TABLES
from keras_transformer.exporting.saved_model import BATCHING

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "BUILD.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "serving").rglob("README.md")),
]
DEPLOY = ROOT / "serving" / "deploy"
BLOCK = re.compile(r"^```(.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LANGUAGES = {"", "python", "toml", "json", "yaml", "sh", "proto"}
PARSERS = {"keras-transformer": command_parser(), "keras-transformer-client": client_parser()}


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


def test_the_page_of_the_configuration_is_what_make_docs_writes():
    path = ROOT / "docs" / "write_configuration.py"
    spec = importlib.util.spec_from_file_location("write_configuration", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    written = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    assert written == script.page(), "run make docs"


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


# serving/deploy.

# tensorflow_serving/model_servers/main.cc: the flags that are used here.
FLAGS = {
    "--port", "--rest_api_port", "--model_config_file", "--model_config_file_poll_wait_seconds",
    "--enable_batching", "--batching_parameters_file", "--monitoring_config_file",
    "--tensorflow_intra_op_parallelism", "--tensorflow_inter_op_parallelism",
    "--allow_version_labels_for_unavailable_models", "--enable_model_warmup", "--ssl_config_file",
    "--xla_cpu_compilation_enabled",
}  # fmt: skip
KINDS = {"deployment": ["Deployment"], "service": ["Service"], "volume": ["PersistentVolumeClaim"],
         "scaling": ["HorizontalPodAutoscaler", "PodDisruptionBudget"]}  # fmt: skip
SERVERS = ["tensorflow_serving", "server"]


def load(server):
    """The manifests of a directory by kind, its kustomization, and its compose service."""
    directory = DEPLOY / server
    names = {path.stem for path in directory.glob("*.yaml")}
    assert names == KINDS.keys() | {"kustomization", "compose"}
    manifests = {}
    for name, kinds in KINDS.items():
        found = list(yaml.safe_load_all((directory / f"{name}.yaml").read_text()))
        assert [one["kind"] for one in found] == kinds
        manifests |= {one["kind"]: one for one in found}
    kustomization = yaml.safe_load((directory / "kustomization.yaml").read_text())
    (compose,) = yaml.safe_load((directory / "compose.yaml").read_text())["services"].values()
    return manifests, kustomization, compose


def pod_of(manifests):
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def ports_of(server):
    """What the server listens on, by its own flags or settings."""
    if server == "server":
        settings = read_settings(DEPLOY / server / "settings.toml", {})
        return {"grpc": settings.port, "rest": settings.rest_port}
    flags = flags_of(pod_of(load(server)[0])[1]["args"])
    return {"grpc": int(flags["--port"]), "rest": int(flags["--rest_api_port"])}


def flags_of(words):
    return dict(word.split("=", 1) for word in words)


def message(fields, **nested):
    """The class of a message with these fields: what the pip package has no module for."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{'_'.join(fields)}.proto", package="test", syntax="proto3",
        dependency=[wrappers.DESCRIPTOR.name],
    )  # fmt: skip
    for name, its_fields in {"Outer": fields, **nested}.items():
        described = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(its_fields.items(), start=1):
            repeated = isinstance(kind, list)
            one = described.field.add(name=field, number=number, label=3 if repeated else 1)
            kind = kind[0] if repeated else kind
            one.type = {"int64": 3, "bool": 8, "string": 9}.get(kind, 11)
            if one.type == 11:
                one.type_name = kind
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Outer"))


def test_batching_parameters_are_the_exporters_and_such_as_tensorflow_serving_reads():
    text = (DEPLOY / "tensorflow_serving/batching_parameters.txt").read_text()
    assert text == BATCHING
    number = ".google.protobuf.Int64Value"
    # BatchingParameters of tensorflow_serving/servables/tensorflow/session_bundle_config.proto.
    kind = message({
        "max_batch_size": number, "batch_timeout_micros": number, "max_enqueued_batches": number,
        "num_batch_threads": number, "allowed_batch_sizes": ["int64"],
        "pad_variable_length_inputs": "bool",
    })  # fmt: skip
    batching = text_format.Parse(text, kind())
    sizes = list(batching.allowed_batch_sizes)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == batching.max_batch_size.value


def test_monitoring_is_at_the_path_that_is_scraped():
    text = (DEPLOY / "tensorflow_serving/monitoring.config").read_text()
    # tensorflow_serving/config/monitoring_config.proto.
    kind = message({"prometheus_config": ".test.Inner"}, Inner={"enable": "bool", "path": "string"})
    monitoring = text_format.Parse(text, kind()).prometheus_config
    assert monitoring.enable
    for server in SERVERS:  # ours has its metrics at the same path
        annotations = load(server)[0]["Deployment"]["spec"]["template"]["metadata"]["annotations"]
        assert annotations["prometheus.io/path"] == monitoring.path
        assert int(annotations["prometheus.io/port"]) == ports_of(server)["rest"]


@pytest.mark.parametrize("server", SERVERS)
def test_names_and_labels_agree(server):
    manifests, kustomization, _ = load(server)
    deployment, service = manifests["Deployment"], manifests["Service"]
    pod, container = pod_of(manifests)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    scaled = manifests["HorizontalPodAutoscaler"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaled["minReplicas"] > manifests["PodDisruptionBudget"]["spec"]["minAvailable"]
    assert kustomization["resources"] == [
        f"{n}.yaml" for n in ("deployment", "service", "scaling", "volume")
    ]
    (config,) = kustomization["configMapGenerator"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["config"]["configMap"]["name"] == config["name"]
    claim = manifests["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["models"]["persistentVolumeClaim"]["claimName"] == claim
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
    assert all((DEPLOY / server / file).exists() for file in config["files"])
    for variable in container["env"]:
        assert variable["valueFrom"]["resourceFieldRef"]["containerName"] == container["name"]


@pytest.mark.parametrize("server", SERVERS)
def test_ports_agree(server):
    manifests, _, compose = load(server)
    _, container = pod_of(manifests)
    ports = ports_of(server)
    assert {one["name"]: one["containerPort"] for one in container["ports"]} == ports
    service = manifests["Service"]["spec"]["ports"]
    assert {one["targetPort"]: one["port"] for one in service} == ports
    assert sorted(int(one.rpartition(":")[2]) for one in compose["ports"]) == sorted(ports.values())
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if server == "server":
            assert container[probe]["grpc"] == {"port": ports["grpc"]}
        else:
            assert container[probe]["httpGet"] == {"path": "/v1/models/first", "port": "rest"}


@pytest.mark.parametrize("server", SERVERS)
def test_there_is_time_to_stop(server):
    pod, container = pod_of(load(server)[0])
    (_, seconds) = container["lifecycle"]["preStop"]["exec"]["command"]
    settings = read_settings(DEPLOY / "server/settings.toml", {})
    assert pod["terminationGracePeriodSeconds"] > int(seconds) + settings.grace_seconds
    if server == "server":
        assert int(load(server)[2]["stop_grace_period"].rstrip("s")) > settings.grace_seconds


def test_tensorflow_serving_is_given_flags_and_files_that_it_has():
    manifests, kustomization, compose = load("tensorflow_serving")
    _, container = pod_of(manifests)
    assert container["command"] == compose["entrypoint"]
    assert container["image"] == compose["image"]
    (config,) = kustomization["configMapGenerator"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    files = {f"{mounts['config']}/{file}" for file in config["files"]}
    for words in (container["args"], compose["command"]):
        flags = flags_of(words)
        assert flags.keys() <= FLAGS
        assert {value for value in flags.values() if value.startswith("/")} == files
    text = (DEPLOY / "tensorflow_serving/models.config").read_text()
    (model,) = text_format.Parse(text, ModelServerConfig()).model_config_list.config
    assert model.name == "first"  # which the probes ask for
    assert model.base_path == f"{mounts['models']}/first"


def test_the_server_is_given_settings_that_it_has():
    manifests, _, compose = load("server")
    _, container = pod_of(manifests)
    settings = read_settings(DEPLOY / "server/settings.toml", {})
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert settings.directory == f"{mounts['models']}/first"
    assert settings.host == "0.0.0.0"
    assert container["args"] == ["--settings", f"{mounts['config']}/settings.toml"]
    assert container["image"] == compose["image"]
    (check, *health) = compose["healthcheck"]["test"]
    assert check == "CMD"
    PARSERS[health[0]].parse_args(health[1:])


def test_the_image_is_built_of_what_is_there():
    text = (DEPLOY / "server/Dockerfile").read_text()
    steps = re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)
    ignored = (DEPLOY / "server/Dockerfile.dockerignore").read_text().splitlines()
    for step, words in steps:
        if step == "COPY":
            for source in words.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored, source
    values = dict(steps)
    python = re.fullmatch(r"python:3\.(\d+)-slim", values["FROM"])
    low, high = re.search(
        r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text()
    ).groups()
    assert int(low) <= int(python[1]) < int(high)
    assert int(python[1]) >= 13  # the first that heeds PYTHON_CPU_COUNT
    assert set(map(int, values["EXPOSE"].split())) == set(ports_of("server").values())
    command, *arguments = json.loads(values["ENTRYPOINT"]) + json.loads(values["CMD"])
    PARSERS[command].parse_args(arguments)
    pod, container = pod_of(load("server")[0])
    assert json.loads(values["CMD"]) == container["args"]
    assert int(values["USER"].partition(":")[0]) == pod["securityContext"]["runAsUser"]


def test_compose_mounts_the_files_that_the_config_map_has():
    for server in SERVERS:
        _, kustomization, compose = load(server)
        (config,) = kustomization["configMapGenerator"]
        mounted = [f"./{file}:/config/{file}:ro" for file in config["files"]]
        assert compose["volumes"][1:] == mounted
    build = load("server")[2]["build"]
    assert (DEPLOY / "server" / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).exists()
