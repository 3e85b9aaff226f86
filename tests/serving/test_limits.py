"""Queues that are full, deadlines that have passed, servers that are told to stop, or die."""

import concurrent.futures
import signal
import subprocess
import sys
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from keras_transformer_client import CallError, Client
from keras_transformer_server.settings import Settings, SettingsError, read_settings

from tests.serving.conftest import running, wait_until
from tests.serving.test_api import metrics

LINE = "mind " * 9


@pytest.fixture(scope="module")
def server(exported, tmp_path_factory):
    flags = ["--max-waiting-rows", "40", "--max-streams", "2", "--max-message-mb", "1"]
    log = tmp_path_factory.mktemp("log") / "log"
    with running(exported.directory.parent, log, *flags, "--max-batch-size", "4") as server:
        yield server


def code_of(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except CallError as error:
        return error.code
    return grpc.StatusCode.OK


def test_more_than_may_wait_are_refused_and_the_others_are_served(server):
    with Client(server.address) as client, concurrent.futures.ThreadPoolExecutor(12) as threads:
        codes = list(threads.map(lambda _: code_of(client.translate, [LINE] * 30), range(12)))
        assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert client.translate("to be")


def test_more_streams_than_may_be_are_refused(server):
    with Client(server.address) as client:
        streams = [client.stream(LINE) for _ in range(2)]
        for stream in streams:
            next(stream)
        with pytest.raises(CallError, match="RESOURCE_EXHAUSTED: 2 translations are being"):
            list(client.stream(LINE))
        for stream in streams:
            list(stream)
        assert list(client.stream("to be"))


def test_what_is_too_late_costs_nothing(server):
    with Client(server.address) as client, concurrent.futures.ThreadPoolExecutor(8) as threads:
        busy = [threads.submit(client.translate, [LINE] * 10) for _ in range(3)]
        before = metrics(server)["keras_transformer_batch_size_sum"]
        late = [threads.submit(code_of, client.translate, LINE, timeout=0.002) for _ in range(4)]
        assert {one.result() for one in late} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        for one in busy:
            one.result()
        ran = metrics(server)["keras_transformer_batch_size_sum"] - before
    assert ran <= 30


def test_a_message_that_is_too_large_is_refused(server):
    with Client(server.address) as client:
        code = code_of(client.translate, ["a" * 19_000] * 100)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert client.translate("to be")


def watch_health(server):
    """Someone who wants to be told how the server is, for ever."""
    channel = grpc.insecure_channel(server.address)
    updates = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    next(updates)
    return channel


def test_a_server_that_is_told_to_stop_finishes_what_it_has_begun(exported, tmp_path):
    with running(exported.directory.parent, tmp_path / "log") as server:
        with Client(server.address) as client, concurrent.futures.ThreadPoolExecutor(4) as threads:
            asked = [threads.submit(client.translate, [LINE] * 250) for _ in range(4)]
            stream = client.stream(LINE)
            next(stream)
            watching = watch_health(server)
            server.process.send_signal(signal.SIGTERM)
            with Client(server.address) as late:
                wait_until(lambda: not late.healthy())
                code = code_of(late.translate, "to be", timeout=0.05)
            assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            with pytest.raises(OSError, match="refused"):
                metrics(server)
            assert list(stream)[-1].finished
            for one in asked:
                assert len(one.result()) == 250
            assert server.process.wait(timeout=25) == 0, "someone who watches holds it up"
            watching.close()
        assert server.process.stdout.read() == "stopped\n"


def test_a_client_finds_a_server_that_was_killed_and_came_back(exported, tmp_path):
    directory, log = exported.directory.parent, tmp_path / "log"
    done, answers = threading.Event(), []

    def ask(client):
        while not done.is_set():
            answers.append(client.translate(LINE, timeout=60))

    with (
        running(directory, log) as first,
        Client(first.address) as client,
        concurrent.futures.ThreadPoolExecutor(4) as threads,
    ):
        asking = [threads.submit(ask, client) for _ in range(4)]
        wait_until(lambda: len(answers) > 8)
        first.process.kill()
        first.process.wait()
        before = len(answers)
        with running(directory, log, port=first.port):
            wait_until(lambda: len(answers) > before + 8, 60)
            done.set()
            for one in asking:
                one.result()
    assert len(set(answers)) == 1


def start(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "keras_transformer_cli", "serve", *arguments],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stderr.splitlines()[-1]


def test_a_server_that_cannot_start_says_why(exported, server, tmp_path):
    directory = str(exported.directory.parent)
    assert start(str(tmp_path)) == (
        2,
        f"keras-transformer serve: nothing to serve: {tmp_path}: no version (a directory with a "
        "number) is in it.",
    )
    code, said = start(directory, "--port", str(server.port))
    assert code == 2
    assert "cannot be listened on" in said
    code, said = start(directory, "--port", "0", "--rest-port", str(server.rest_port))
    assert code == 2
    assert "Choose another --rest-port" in said
    assert start() == (
        2,
        "keras-transformer serve: No model: give the directory of an exported one.",
    )


def test_settings_come_from_a_file_and_flags_stand_over_it(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text('directory = "model"\nport = 9000\nmax_batch_size = 8\n')
    settings = read_settings(path, {"port": 9001, "name": None})
    assert settings == Settings("model", port=9001, max_batch_size=8)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", "unknown key prot"),
        ("port = 'x'", "port is 'x'; expected a whole number"),
        ("port = true", "port is True"),
        ("port = -1", "port is -1; expected 0 or more"),
        ("rest_port = 70000", "rest_port is 70000; expected 65535 or less"),
        ("max_batch_size = 0", "expected 1 or more"),
        ("certificate = 'c.pem'", "certificate and key belong together"),
        ("client_ca = 'c.pem'", "client_ca needs TLS"),
        ("batch_timeout_ms = nan", "expected 0 or more"),
        ("=", "not valid TOML"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(tmp_path, text, words):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=words):
        read_settings(path, {"directory": "model"})
