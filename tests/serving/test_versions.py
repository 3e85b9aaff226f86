"""Versions that come, go, and are broken, while requests go on."""

import asyncio
import concurrent.futures
import shutil
import threading
import time
import weakref

import grpc
import numpy as np
import pytest
from keras_transformer_client import Client, calls
from keras_transformer_server.batcher import Batcher
from keras_transformer_server.metrics import Metrics
from keras_transformer_server.predict import Predictor
from keras_transformer_server.settings import Settings
from keras_transformer_server.versions import Models, Wanted
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
)

import keras_transformer as kt
from tests.conftest import make_model
from tests.serving.conftest import refused, running, wait_until

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


def reload(server, *configs, timeout=None):
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
        return stub.HandleReloadConfigRequest(request, timeout=timeout)


def test_what_is_served_can_be_changed(server, directory, newer, tmp_path):
    install(newer, directory)
    both = dict(specific=[1, 2], labels={"stable": 1, "canary": 2})
    response = reload(
        server,
        dict(name="default", path=directory, **both),
        dict(name="other", path=_copy(newer, tmp_path / "other")),
    )
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
    for name, path, expected in [
        ("other", newer.parent, "PERMISSION_DENIED"),
        ("other", directory / ".." / ".." / "x", "PERMISSION_DENIED"),
        ("default", newer.parent, "INVALID_ARGUMENT"),
        ("other", "a\0b", "INVALID_ARGUMENT"),
    ]:
        code, details = refused(reload, server, dict(name=name, path=path))
        assert code.name == expected
        assert "config.base_path" in details
    code, details = refused(reload, server)
    assert code.name == "INVALID_ARGUMENT"
    twice = [dict(name="default", path=directory)] * 2
    code, details = refused(reload, server, *twice)
    assert code.name == "INVALID_ARGUMENT"
    assert "each model needs one of its own" in details
    with Client(server.address) as client:
        assert client.translate("to be")


def test_a_reload_is_done_though_nobody_waits_for_it(server, directory, newer, tmp_path):
    other = dict(name="other", path=_copy(newer, tmp_path / "other"))
    both = [dict(name="default", path=directory), other]
    assert refused(reload, server, *both, timeout=0.3)[0].name == "DEADLINE_EXCEEDED"
    wait_until(lambda: any(one.state == State.AVAILABLE for one in known(server).values()), 60)
    with Client(server.address, model="other") as client:
        assert client.translate("to be")
    response = reload(server, *both, dict(name="empty", path=tmp_path / "nothing"))
    assert "no version" in response.status.error_message


def known(server):
    try:
        return states(server, "other")
    except grpc.RpcError:
        return {}


def test_without_a_root_nothing_can_be_added_or_taken_away(exported, directory, tmp_path):
    with running(directory, tmp_path / "log") as server:
        default = dict(name="default", path=directory)
        for models in [
            [default, dict(name="other", path=directory)],
            [dict(name="other", path=directory)],
        ]:
            assert refused(reload, server, *models)[0].name == "PERMISSION_DENIED"
        response = reload(server, default | {"labels": {"stable": 1}})
        assert response.status.error_code == 0
        with Client(server.address, label="stable") as client:
            assert client.translate("to be")


def test_rather_an_old_version_than_none(exported, directory, tmp_path):
    (directory / "2").mkdir()
    (directory / "2" / "saved_model.pb").write_bytes(b"not a model")
    (directory / "007").mkdir()  # not the name of a version
    with running(directory, tmp_path / "log") as server, Client(server.address) as client:
        assert client.translate("to be")
        assert {version: one.state for version, one in states(server).items()} == {
            1: State.AVAILABLE,
            2: State.END,
        }


def test_an_old_version_is_freed(exported, newer, directory):
    async def main():
        models = Models({"default": Wanted(directory)}, 1.0)
        await models.look(at_once=True)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            batcher = Batcher(pool, 2, 8, 0.001, 100, lambda *_: None)
            batcher.start()
            predictor = Predictor(models, batcher, Settings(str(directory)), Metrics())
            arrays = {"text": np.array([b"to be"], object)}
            with models.use("default") as model:
                await predictor.predict(model, "", arrays)
                old = weakref.ref(model)
                del model
                install(newer, directory)
                await models.look(at_once=True)
                assert models.versions["default"][1].state == State.UNLOADING
            assert models.versions["default"][1].state == State.END
            for _ in range(100):
                await asyncio.sleep(0.05)
                if old() is None:
                    break
            await batcher.stop()
        assert old() is None

    asyncio.run(main())
