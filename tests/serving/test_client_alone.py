"""The client in an environment of its own, and beside TensorFlow."""

import concurrent.futures
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from keras_transformer_client import CallError, Client, tensors
from packaging.requirements import Requirement
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "serving" / "client"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The directory that `pip install ./serving/client` fills."""
    directory = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--no-deps", "--no-build-isolation", "--target", directory, CLIENT],
        check=True, timeout=300,
    )  # fmt: skip
    return directory


def run(installed, code):
    # Without the site's own .pth files, which would find this checkout first.
    paths = [str(installed), *(path for path in sys.path if path.endswith("-packages"))]
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path += {paths}\n{code}"],
        capture_output=True, text=True, timeout=300, cwd=installed,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_needs_no_tensorflow(installed):
    code = """
import keras_transformer_client, keras_transformer_client.__main__
for name in ("tensorflow", "keras", "tensorflow_serving", "keras_transformer", "absl", "h5py"):
    assert name not in sys.modules, name
print(keras_transformer_client.__file__)
"""
    assert run(installed, code).strip().startswith(str(installed))


def test_it_depends_on_three_packages_that_fit_those_of_tensorflow():
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    requirements = [Requirement(text) for text in project["dependencies"]]
    assert {one.name for one in requirements} == {"grpcio", "numpy", "protobuf"}
    for one in requirements:
        assert one.specifier.contains(metadata.version(one.name)), one


def test_it_installs_beside_tensorflow_and_changes_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--dry-run",
         "--no-build-isolation", "--no-index", CLIENT],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (would,) = [line for line in done.stdout.splitlines() if line.startswith("Would install")]
    assert would.split()[2:] == ["keras-transformer-client-0.1.0"]


@pytest.mark.parametrize("first", ["client", "tensorflow"])
def test_it_lives_in_one_process_with_tensorflow(installed, first):
    lines = [
        "import keras_transformer_client.tensors as tensors",
        "import tensorflow as tf; from tensorflow_serving.apis import predict_pb2",
    ]
    code = "\n".join(lines if first == "client" else lines[::-1])
    code += """
import numpy as np
array = np.arange(6, dtype="float32").reshape(2, 3)
ours = tensors.to_tensor(array).SerializeToString()
from tensorflow.core.framework import tensor_pb2
theirs = tensor_pb2.TensorProto.FromString(ours)
assert (tf.make_ndarray(theirs) == array).all()
"""
    run(installed, code)


def test_the_protos_are_what_protoc_makes_of_them(tmp_path):
    out = tmp_path / "protos.bin"
    package = CLIENT / "keras_transformer_client"
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{CLIENT}", f"--descriptor_set_out={out}",
         *sorted(package.glob("*.proto"))],
        check=True,
    )  # fmt: skip
    assert out.read_bytes() == (package / "protos.bin").read_bytes(), "run: make protos"


@pytest.mark.parametrize("dtype", [name for name in tensors.NUMBERS if name != "object"])
def test_arrays_go_there_and_back(dtype):
    array = np.array([[0, 1, 2], [3, 100, 1]]).astype(dtype)
    theirs = tensor_pb2.TensorProto.FromString(tensors.to_tensor(array).SerializeToString())
    assert theirs.dtype == tf.dtypes.as_dtype(array.dtype).as_datatype_enum
    np.testing.assert_array_equal(tf.make_ndarray(theirs), array)
    for proto in (theirs, _typed(array)):
        ours = type(tensors.to_tensor(0)).FromString(proto.SerializeToString())
        back = tensors.to_array(ours)
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


def _typed(array):
    from keras_transformer_server.codec import to_proto

    return to_proto(array)


def test_text_goes_there_and_back():
    for value in ("text", ["one", "zwei", "трі"], [["a", "b"]], [b"\xff", "a\0"]):
        expected = np.array(value, object)
        theirs = tensor_pb2.TensorProto.FromString(tensors.to_tensor(value).SerializeToString())
        back = tensors.to_array(tensors.to_tensor(value))
        assert tf.make_ndarray(theirs).shape == back.shape == expected.shape
        assert list(back.ravel()) == [
            one if isinstance(one, bytes) else one.encode() for one in expected.ravel()
        ]


class TensorFlowServing(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    """Answers as TensorFlow Serving, made of its own stubs; it has no health and no streams."""

    def Predict(self, request, context):  # noqa: N802
        assert request.model_spec.name == "first"
        texts = tf.make_ndarray(request.inputs["text"])
        response = predict_pb2.PredictResponse()
        upper = tensor_pb2.TensorProto(
            dtype=tf.string.as_datatype_enum, string_val=[text.upper() for text in texts]
        )
        upper.tensor_shape.dim.add(size=len(texts))
        response.outputs["text"].CopyFrom(upper)
        return response

    def GetModelMetadata(self, request, context):  # noqa: N802
        signatures = get_model_metadata_pb2.SignatureDefMap()
        info = signatures.signature_def["serving_default"].inputs["text"]
        info.dtype = tf.string.as_datatype_enum
        info.tensor_shape.dim.add(size=-1)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.metadata["signature_def"].Pack(signatures)
        return response

    def GetModelStatus(self, request, context):  # noqa: N802
        response = get_model_status_pb2.GetModelStatusResponse()
        response.model_version_status.add(version=1, state=self.state)
        return response

    state = get_model_status_pb2.ModelVersionStatus.AVAILABLE


def test_it_asks_tensorflow_serving_as_well():
    serving = TensorFlowServing()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(serving, server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(serving, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with Client(f"127.0.0.1:{port}", model="first") as client:
            assert client.translate(["to be", "or not"]) == ["TO BE", "OR NOT"]
            assert client.metadata()["serving_default"]["inputs"]["text"].shape == (None,)
            assert client.healthy()
            serving.state = get_model_status_pb2.ModelVersionStatus.LOADING
            assert not client.healthy()
            with pytest.raises(CallError, match="has no streams: translate works with both"):
                list(client.stream("to be"))
    finally:
        server.stop(0).wait()


def test_one_value_stands_for_the_rest():
    tensor = tensors.to_tensor(np.int32([7]))
    tensor.ClearField("tensor_content")
    tensor.int_val.append(7)
    tensor.tensor_shape.dim[0].size = 3
    assert tensors.to_array(tensor).tolist() == [7, 7, 7]


def test_what_cannot_be_sent_is_said():
    with pytest.raises(ValueError, match="Arrays of complex128 cannot be sent"):
        tensors.to_tensor(1j)
    with pytest.raises(ValueError, match="None cannot be sent"):
        tensors.to_tensor(["a", None])
