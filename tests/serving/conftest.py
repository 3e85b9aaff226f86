import contextlib
import dataclasses
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc


@dataclasses.dataclass
class Server:
    """A server in a process of its own."""

    process: subprocess.Popen
    port: int
    rest_port: int | None
    log: Path

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def url(self, path):
        return f"http://127.0.0.1:{self.rest_port}{path}"

    @contextlib.contextmanager
    def channel(self, **options):
        with grpc.insecure_channel(self.address, **options) as channel:
            yield channel

    def stop(self):
        """Asks it to stop, and returns how it ended."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@contextlib.contextmanager
def running(directory, log, *flags, port=0):
    """Starts a server; ends it however the block is left."""
    command = [sys.executable, "-m", "keras_transformer_cli", "serve", str(directory)]
    with log.open("a") as file:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--rest-port", "0", *map(str, flags)],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    try:
        ready = process.stdout.readline()
        found = re.search(r"gRPC on port (\d+)(?:, REST on port (\d+))?", ready)
        assert found, f"{ready}{log.read_text()}"
        yield Server(process, int(found[1]), found[2] and int(found[2]), log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def server(exported, tmp_path_factory):
    """A server with everything as it is by default."""
    with running(exported.directory.parent, tmp_path_factory.mktemp("log") / "log") as server:
        yield server


@pytest.fixture(scope="module")
def prediction(server):
    with server.channel() as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


@pytest.fixture(scope="module")
def model_service(server):
    with server.channel() as channel:
        yield model_service_pb2_grpc.ModelServiceStub(channel)


def refused(call, *arguments, **options):
    """The code and the words of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **options)
    return caught.value.code(), caught.value.details()


def wait_until(is_so, seconds=20):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
