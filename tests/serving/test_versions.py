"""Versions that come, go, and are broken, while requests go on."""

import concurrent.futures
import shutil
import threading
import time

import pytest
from keras_transformer_client import Client, calls
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
)

import keras_transformer as kt
from tests.conftest import make_model
from tests.serving.conftest import refused, running
from tests.serving.test_translation import wait_until

State = get_model_status_pb2.ModelVersionStatus


@pytest.fixture(scope="module")
def newer(exported, tmp_path_factory):
    """Another model of the same vocabulary, as version 2."""
    model = make_model(exported.tokenizer, seed=6)
    return kt.export(model, exported.tokenizer, tmp_path_factory.mktemp("newer"), version=2)


@pytest.fixture
def directory(exported, tmp_path):
    """A model's directory with its first version."""
    shutil.copytree(exported.directory, tmp_path / "model" / "1")
    return tmp_path / "model"


@pytest.fixture
def server(directory, tmp_path):
    flags = ("--poll-seconds", "0.1", "--reload-root", tmp_path)
    with running(directory, tmp_path / "log", *flags) as server:
        yield server


def states(server, name="default"):
    with server.channel() as channel:
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = name
        status = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(request)
    return {one.version: one for one in status.model_version_status}


def install(version, directory):
    """Puts a version there at once, as `export` does."""
    part = directory / ".part"
    shutil.copytree(version, part)
    part.rename(directory / version.name)


def test_a_new_version_takes_over_without_a_failed_request(server, directory, newer):
    line = "that is the question"
    done, answers = threading.Event(), []

    def ask():
        # Not tried again: whatever fails is seen.
        with Client(server.address) as client:
            while not done.is_set():
                answers.append(client._run(calls.translate(client.target, line), retry=False))

    with Client(server.address) as client:
        old = client.translate(line)
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            asking = [threads.submit(ask) for _ in range(8)]
            time.sleep(0.5)
            install(newer, directory)
            wait_until(lambda: states(server).get(1).state == State.END, 60)
            time.sleep(0.5)
            done.set()
            for one in asking:
                one.result()
        new = client.translate(line)
    assert new != old
    assert set(answers) == {old, new}
    assert answers.count(new) > 0
    assert states(server)[2].state == State.AVAILABLE


def test_a_broken_version_is_reported_and_the_old_one_goes_on(server, directory, newer):
    broken = directory / "2"
    shutil.copytree(newer, broken)
    (broken / "saved_model.pb").write_bytes(b"not a model")
    wait_until(lambda: states(server).get(2) and states(server)[2].state == State.END, 60)
    status = states(server)[2].status
    assert status.error_code != 0
    assert "cannot be loaded" in status.error_message
    with Client(server.address) as client:
        assert client.translate("to be")
        assert states(server)[1].state == State.AVAILABLE
        # It is mended, and taken.
        shutil.copy(newer / "saved_model.pb", broken / "saved_model.pb")
        wait_until(lambda: states(server)[2].state == State.AVAILABLE, 60)
        assert states(server)[1].state == State.END
        # It is taken away, and the old one is back.
        shutil.rmtree(broken)
        wait_until(lambda: states(server)[1].state == State.AVAILABLE, 60)
        assert client.translate("to be")


def reload(server, *configs):
    request = model_management_pb2.ReloadConfigRequest()
    for config in configs:
        made = request.config.model_config_list.config.add(
            name=config["name"], base_path=str(config["path"])
        )
        if "specific" in config:
            made.model_version_policy.specific.versions.extend(config["specific"])
        for label, version in config.get("labels", {}).items():
            made.version_labels[label] = version
    with server.channel() as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        return stub.HandleReloadConfigRequest(request)


def test_what_is_served_can_be_changed(server, directory, newer, tmp_path):
    install(newer, directory)
    both = dict(specific=[1, 2], labels={"stable": 1, "canary": 2})
    response = reload(
        server,
        dict(name="default", path=directory, **both),
        dict(name="other", path=newer.parent if newer.parent.is_relative_to(tmp_path)
             else _copy(newer, tmp_path / "other")),
    )  # fmt: skip
    assert response.status.error_code == 0
    assert {v for v, one in states(server).items() if one.state == State.AVAILABLE} == {1, 2}
    line = "that is the question"

    def ask(**options):
        with Client(server.address, **options) as client:
            return client.translate(line)

    assert ask(label="stable") == ask(version=1) != ask(version=2) == ask(label="canary")
    assert ask(model="other") == ask(version=2)
    reload(server, dict(name="other", path=tmp_path / "other"))
    assert refused(states, server)[0].name == "NOT_FOUND"


def _copy(version, directory):
    directory.mkdir()
    install(version, directory)
    return directory


def test_clients_cannot_have_just_anything_loaded(server, directory, newer):
    code, details = refused(reload, server, dict(name="default", path=newer.parent))
    assert code.name == "PERMISSION_DENIED"
    assert str(newer.parent) in details
    code, details = refused(reload, server)
    assert code.name == "INVALID_ARGUMENT"
    twice = [dict(name="default", path=directory)] * 2
    code, details = refused(reload, server, *twice)
    assert code.name == "INVALID_ARGUMENT"
    assert "each model needs one of its own" in details
    with Client(server.address) as client:
        assert client.translate("to be")
