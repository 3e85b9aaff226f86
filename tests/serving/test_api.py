"""TensorFlow Serving's API, asked with its own stubs over a real socket."""

import concurrent.futures
import urllib.request

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)

from tests.serving.conftest import refused

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
LINES = ["to be", "or not to be that is the question", "", "mind " * 9, "tis nobler"]


def request(signature="", name="default", outputs=(), **inputs):
    made = predict_pb2.PredictRequest(output_filter=outputs)
    made.model_spec.name = name
    made.model_spec.signature_name = signature
    for key, value in inputs.items():
        made.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    return made


def texts(response):
    return [text.decode() for text in tf.make_ndarray(response.outputs["text"])]


@pytest.mark.parametrize("signature", ["", "serving_default", "greedy"])
def test_the_answers_are_those_of_the_model(prediction, exported, signature):
    response = prediction.Predict(request(signature, text=LINES))
    expected = exported.load().signatures[signature or "serving_default"](text=tf.constant(LINES))
    assert texts(response) == [text.decode() for text in expected["text"].numpy()]
    np.testing.assert_allclose(
        tf.make_ndarray(response.outputs["score"]), expected["score"], rtol=1e-4, atol=1e-5
    )
    assert response.model_spec.name == "default"
    assert response.model_spec.version.value == 1
    assert response.model_spec.signature_name == (signature or "serving_default")


def test_values_are_in_typed_fields_as_old_clients_read_them(prediction):
    response = prediction.Predict(request(text=LINES))
    assert len(response.outputs["text"].string_val) == len(LINES)
    assert len(response.outputs["score"].float_val) == len(LINES)
    assert len(response.outputs["truncated"].bool_val) == len(LINES)
    assert not any(output.tensor_content for output in response.outputs.values())


def test_both_encodings_are_read(prediction):
    ids = np.array([[5, 6, 7], [8, 9, 0]], "int32")
    packed = request("decode_ids", ids=ids, lengths=np.array([3, 2], "int32"))
    assert packed.inputs["ids"].tensor_content
    typed = request("decode_ids", ids=ids, lengths=[3, 2])
    typed.inputs["ids"].ClearField("tensor_content")
    typed.inputs["ids"].int_val.extend(ids.ravel().tolist())
    answers = [prediction.Predict(one).outputs["ids"].int_val for one in (packed, typed)]
    assert answers[0] == answers[1]


def test_one_value_stands_for_the_rest(prediction):
    asked = request("decode_ids", ids=np.full((2, 4), 5, "int32"), lengths=[4, 4])
    expected = prediction.Predict(asked).outputs["ids"].int_val
    asked.inputs["ids"].ClearField("tensor_content")
    asked.inputs["ids"].ClearField("int_val")
    asked.inputs["ids"].int_val.append(5)
    assert prediction.Predict(asked).outputs["ids"].int_val == expected


def test_only_the_outputs_that_are_asked_for_come(prediction):
    assert set(prediction.Predict(request(outputs=["score"], text=LINES)).outputs) == {"score"}


def test_all_signatures_can_be_asked(prediction):
    row = np.array([0.7], "float32")
    asked = {
        "n_best": dict(text=["to be"]),
        "sample": dict(text=["to be"], temperature=row, top_k=np.int32([5]), top_p=row,
                       seed=np.int32([3])),
        "prefixed": dict(text=["to be"], prefix=["not"]),
        "score": dict(text=["to be"], target=["or not"]),
        "decode_ids_compiled": dict(ids=np.int32([[5, 6]]), lengths=np.int32([2])),
        "start": dict(text=["to be"]),
    }  # fmt: skip
    for signature, inputs in asked.items():
        assert prediction.Predict(request(signature, **inputs)).outputs, signature
    assert texts(prediction.Predict(request("prefixed", **asked["prefixed"])))[0].startswith("not")


def test_an_empty_batch_is_answered(prediction):
    response = prediction.Predict(request(text=np.array([], object)))
    assert [dim.size for dim in response.outputs["text"].tensor_shape.dim] == [0]


def test_requests_at_the_same_time_get_their_own_answers(prediction, server):
    alone = {line: texts(prediction.Predict(request(text=[line]))) for line in LINES}
    before = executions(server)
    with concurrent.futures.ThreadPoolExecutor(32) as threads:
        lines = LINES * 20
        found = list(threads.map(lambda line: prediction.Predict(request(text=[line])), lines))
    assert [texts(response) for response in found] == [alone[line] for line in lines]
    rows, count = (now - then for now, then in zip(executions(server), before, strict=True))
    assert rows == len(lines)
    assert count < rows / 2, "they ran one by one"


def executions(server):
    """Rows that have run, and in how many executions."""
    lines = metrics(server)
    prefix = "keras_transformer_batch_size"
    return lines[f"{prefix}_sum"], lines[f"{prefix}_count"]


def metrics(server):
    with urllib.request.urlopen(server.url("/monitoring/prometheus/metrics")) as response:
        lines = response.read().decode().splitlines()
    return {
        key: float(value)
        for key, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def test_the_signatures_are_told(prediction, exported):
    asked = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    asked.model_spec.name = "default"
    response = prediction.GetModelMetadata(asked)
    found = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(found)
    assert found.signature_def.keys() == exported.load().signatures.keys()
    assert found.signature_def["prefixed"].inputs.keys() == {"text", "prefix"}
    assert found.signature_def["greedy"].outputs["text"].dtype == tf.string.as_datatype_enum


def test_the_versions_are_told(model_service):
    asked = get_model_status_pb2.GetModelStatusRequest()
    asked.model_spec.name = "default"
    (status,) = model_service.GetModelStatus(asked).model_version_status
    assert status.version == 1
    assert status.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE
    assert status.status.error_code == 0
    asked.model_spec.version.value = 7
    code, details = refused(model_service.GetModelStatus, asked)
    assert code is NOT_FOUND
    assert "model_spec.version is 7" in details


def with_spec(**fields):
    made = request(text=["to be"])
    for name, value in fields.items():
        if name == "version":
            made.model_spec.version.value = value
        else:
            setattr(made.model_spec, name, value)
    return made


def broken_shape():
    made = request("decode_ids", ids=np.zeros((2, 3), "int32"), lengths=[3, 3])
    made.inputs["ids"].tensor_shape.dim[1].size = 4
    return made


def with_tensor(**fields):
    made = request(text=["to be"])
    made.inputs["text"].CopyFrom(tensor_pb2.TensorProto(**fields))
    made.inputs["text"].tensor_shape.dim.add(size=1)
    return made


def unknown_rank():
    made = request(text=["to be"])
    made.inputs["text"].tensor_shape.unknown_rank = True
    return made


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        (with_spec(name="other"), NOT_FOUND, "model_spec.name is 'other'; this server has default"),
        (with_spec(name=""), NOT_FOUND, "model_spec.name is ''"),
        (with_spec(version=9), NOT_FOUND, "model_spec.version is 9"),
        (with_spec(version_label="canary"), NOT_FOUND, "model_spec.version_label is 'canary'"),
        (with_spec(signature_name="beam"), NOT_FOUND, "model_spec.signature_name is 'beam'"),
        (request(), INVALID, "inputs['text'] is missing"),
        (request(text=["a"], more=["b"]), INVALID, "inputs['more'] is unknown"),
        (request(text=[1.5]), INVALID, "inputs['text'].dtype is float32; expected string"),
        (request(text=[["a"]]), INVALID, "inputs['text'] has the shape [1, 1]; expected [any]"),
        (request(text="a"), INVALID, "inputs['text'] has the shape []; expected [any]"),
        (request(text=["a"], outputs=["words"]), INVALID, "output_filter has 'words'"),
        (request(text=["a" * 20_001]), INVALID, "a text of 20001 bytes"),
        (request(text=["a"] * 1025), INVALID, "1025 rows"),
        (broken_shape(), INVALID, "tensor_content has 24 bytes; the shape [2, 4] of int32"),
        (with_tensor(dtype=7), INVALID, "string_val has 0 values; the shape [1] needs 1"),
        (with_tensor(dtype=7, string_val=[b"a", b"b"]), INVALID, "has 2 values"),
        (with_tensor(dtype=7, tensor_content=b"ab"), INVALID, "give strings in string_val"),
        (with_tensor(dtype=20), INVALID, "inputs['text'].dtype is 20"),
        (with_tensor(dtype=0), INVALID, "inputs['text'].dtype is 0"),
        (with_tensor(dtype=999), INVALID, "inputs['text'].dtype is 999"),
        (unknown_rank(), INVALID, "unknown rank"),
        (request("n_best", text=["a"] * 65), INVALID, "inputs have 65 rows"),
        (request("prefixed", text=["a", "b"], prefix=["c"]), INVALID, "prefix: give one for each"),
        (request("decode_ids", ids=[[1, 2]], lengths=[1, 2, 3]), INVALID, "lengths: give one"),
    ],
)  # fmt: skip
def test_a_bad_request_is_told_what_is_wrong(prediction, asked, code, words):
    found, details = refused(prediction.Predict, asked)
    assert found is code
    assert words in details
    assert "Traceback" not in details
    assert ".py" not in details


def test_sizes_that_no_memory_holds_are_refused(prediction):
    asked = request("decode_ids", ids=np.int32([[1]]), lengths=[1])
    asked.inputs["ids"].tensor_shape.dim[1].size = 2**40
    code, details = refused(prediction.Predict, asked)
    assert code is INVALID
    assert "inputs['ids']" in details


def test_a_small_message_cannot_claim_to_be_large_tensors(prediction):
    asked = request(text=["to be"])
    for number in range(100):
        tensor = asked.inputs[f"more {number}"]
        tensor.CopyFrom(tf.make_tensor_proto([5]))
        tensor.tensor_shape.dim[0].size = 2**20
    assert refused(prediction.Predict, asked)[0] is INVALID
    asked = request("decode_ids", ids=np.int32([[1]]), lengths=[1])
    asked.inputs["ids"].tensor_shape.dim[1].size = 2**17
    code, details = refused(prediction.Predict, asked)
    assert code is INVALID
    assert "inputs['ids']" in details


def test_bytes_that_are_no_message_are_refused(server):
    with server.channel() as channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        code, details = refused(call, b"\xff\xff\xff\xff")
    assert code is INVALID
    assert "PredictRequest" in details


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("Classify", classification_pb2.ClassificationRequest()),
        ("Regress", regression_pb2.RegressionRequest()),
        ("MultiInference", inference_pb2.MultiInferenceRequest()),
    ],
)
def test_calls_that_make_no_sense_say_so(prediction, method, asked):
    code, details = refused(getattr(prediction, method), asked)
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "call Predict" in details


def test_the_server_says_that_it_is_well(server):
    with server.channel() as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "tensorflow.serving.PredictionService"):
            response = health.Check(health_pb2.HealthCheckRequest(service=service))
            assert response.status == health_pb2.HealthCheckResponse.SERVING


def test_the_services_can_be_listed_and_described(server):
    with server.channel() as channel:
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(
                file_containing_symbol="keras_transformer.v1.Translation"
            ),
            reflection_pb2.ServerReflectionRequest(
                file_containing_symbol="tensorflow.serving.PredictionService"
            ),
        ]
        listed, *files = list(reflect(iter(asked)))
    names = {service.name for service in listed.list_services_response.service}
    assert names >= {
        "tensorflow.serving.PredictionService",
        "tensorflow.serving.ModelService",
        "keras_transformer.v1.Translation",
        "grpc.health.v1.Health",
    }
    assert all(file.file_descriptor_response.file_descriptor_proto for file in files)
