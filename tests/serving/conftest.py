import contextlib
import time

import grpc
import pytest
from keras_transformer_server.process import ServerProcess
from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc


class Server(ServerProcess):
    """A server in a process of its own, with what tests need of it."""

    def __init__(self, directory, log, *flags):
        super().__init__(directory, *flags, log=log)
        self.log = log

    def url(self, path):
        return f"http://127.0.0.1:{self.rest_port}{path}"

    @contextlib.contextmanager
    def channel(self, **options):
        with grpc.insecure_channel(self.address, **options) as channel:
            yield channel

    def __exit__(self, *_):
        self._end()  # whatever is in flight


def running(directory, log, *flags, port=0):
    """A server that ends however the block is left."""
    return Server(directory, log, *flags, "--port", port)


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
