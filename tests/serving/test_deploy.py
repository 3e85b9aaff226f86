"""What is in serving/deploy, held against the code and against each other."""

import json
import re
from pathlib import Path

import pytest
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf import wrappers_pb2 as wrappers
from keras_transformer_server.settings import read_settings
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from keras_transformer.exporting.saved_model import BATCHING
from tests.test_docs import FLAGS, PARSERS

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "serving" / "deploy"
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
