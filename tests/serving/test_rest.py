"""TensorFlow Serving's REST paths."""

import base64
import json
import socket
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf

from tests.serving.conftest import wait_until
from tests.serving.test_api import metrics

LINES = ["to be", "or not to be that is the question"]


def ask(server, path, body=None):
    """The status and the JSON of an answer."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url(path), data)) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.fixture(scope="module")
def expected(exported):
    found = exported.load().signatures["serving_default"](text=tf.constant(LINES))
    return [text.decode() for text in found["text"].numpy()]


@pytest.mark.parametrize("instances", [LINES, [{"text": line} for line in LINES],
    [{"b64": base64.b64encode(line.encode()).decode()} for line in LINES]])  # fmt: skip
def test_rows_in_rows_out(server, expected, instances):
    status, answer = ask(server, "/v1/models/default:predict", {"instances": instances})
    assert status == 200
    assert [row["text"] for row in answer["predictions"]] == expected
    assert set(answer["predictions"][0]) == {"text", "score", "lengths", "truncated"}


@pytest.mark.parametrize("inputs", [LINES, {"text": LINES}])
@pytest.mark.parametrize("path", ["/v1/models/default", "/v1/models/default/versions/1"])
def test_columns_in_columns_out(server, expected, path, inputs):
    status, answer = ask(server, f"{path}:predict", {"inputs": inputs})
    assert status == 200
    assert answer["outputs"]["text"] == expected


def test_a_signature_can_be_named(server, exported):
    body = {"signature_name": "n_best", "inputs": {"text": LINES}}
    _, answer = ask(server, "/v1/models/default:predict", body)
    found = exported.load().signatures["n_best"](text=tf.constant(LINES))
    np.testing.assert_allclose(answer["outputs"]["score"], found["score"], rtol=1e-4, atol=1e-5)
    assert np.shape(answer["outputs"]["alignment"]) == found["alignment"].shape


def test_numbers_are_read_by_the_type_of_the_input(server):
    body = {"signature_name": "decode_ids", "inputs": {"ids": [[5, 6], [7, 0]], "lengths": [2, 1]}}
    status, answer = ask(server, "/v1/models/default:predict", body)
    assert status == 200
    assert len(answer["outputs"]["ids"]) == 2


def test_the_status_and_the_signatures_are_told(server):
    for path in ("/v1/models/default", "/v1/models/default/versions/1"):
        status, answer = ask(server, path)
        assert status == 200
        (version,) = answer["model_version_status"]
        assert version["version"] == "1"
        assert version["state"] == "AVAILABLE"
        assert version["status"] == {"error_code": "OK", "error_message": ""}
    status, answer = ask(server, "/v1/models/default/metadata")
    assert status == 200
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert "text" in signatures["serving_default"]["inputs"]


PREDICT = "/v1/models/default:predict"


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (PREDICT, b"{", 400, "no JSON"),
        (PREDICT, b"\xff", 400, "no JSON"),
        (PREDICT, b"[" * 100_000, 400, "no JSON"),
        (PREDICT, [], 400, '{"instances": [...]}'),
        (PREDICT, {}, 400, '{"instances": [...]}'),
        (PREDICT, {"instances": [], "inputs": []}, 400, '{"instances": [...]}'),
        (PREDICT, {"instances": []}, 400, "instances is []"),
        (PREDICT, {"instances": 3}, 400, "instances is 3"),
        (PREDICT, {"instances": [1.5]}, 400, "text is 1.5; expected text"),
        (PREDICT, {"instances": [{"text": "a"}, {}]}, 400, "same inputs"),
        (PREDICT, {"instances": [{"b64": "%"}]}, 400, "not base64"),
        (PREDICT, {"instances": [{"words": "a"}]}, 400, "inputs['words'] is unknown"),
        (PREDICT, {"inputs": "a"}, 400, "has the shape []"),
        (PREDICT, {"inputs": [["a"], "b"]}, 400, "text is"),
        (PREDICT, {"inputs": ["a"], "signature_name": 3}, 400, "signature_name is 3"),
        (PREDICT, {"inputs": ["a"], "signature_name": "x"}, 404, "signature_name is 'x'"),
        (PREDICT, b'{"inputs": ' + b"[" * 900 + b"]" * 900 + b"}", 400, "nested too deeply"),
        (PREDICT, {"instances": ["a"], "signature_name": "start"}, 400, 'ask it with "inputs"'),
        (PREDICT, {"inputs": ["a"], "signature_name": "score"}, 400, "inputs has no names"),
        (PREDICT, {"inputs": {"ids": [[1.5]], "lengths": [1]}, "signature_name": "decode_ids"},
         400, "ids is [[1.5]]; expected int32"),
        (PREDICT, {"inputs": {"ids": [[1], [2, 3]], "lengths": [1, 2]},
                   "signature_name": "decode_ids"}, 400, "expected int32"),
        (PREDICT, {"inputs": {"ids": [[2**40]], "lengths": [1]}, "signature_name": "decode_ids"},
         400, "expected int32"),
        ("/v1/models/other:predict", {"inputs": ["a"]}, 404, "model_spec.name is 'other'"),
        ("/v1/models/default/versions/9:predict", {"inputs": ["a"]}, 404, "version is 9"),
        ("/v1/models/default/labels/new:predict", {"inputs": ["a"]}, 404, "label is 'new'"),
        (f"/v1/models/default/versions/{9**40}", None, 400, "too large"),
        ("/v1/models/other", None, 404, "model_spec.name is 'other'"),
        ("/v1/models", None, 404, "/v1/models: Not Found"),
        (PREDICT, None, 405, "Method Not Allowed"),
        (PREDICT, b" " * (17 * 2**20), 413, "Too Large"),
    ],
)  # fmt: skip
def test_a_bad_request_is_told_what_is_wrong(server, path, body, status, words):
    found, answer = ask(server, path, body)
    assert found == status
    assert words in answer["error"]


def test_what_was_done_is_counted(server):
    before = metrics(server)
    ask(server, PREDICT, {"instances": LINES})
    ask(server, PREDICT, {"instances": []})
    after = metrics(server)

    def grown(name):
        return after[name] - before.get(name, 0)

    requests = "keras_transformer_requests_total"
    assert grown(requests + '{code="OK",method="REST predict"}') == 1
    assert grown(requests + '{code="INVALID_ARGUMENT",method="REST predict"}') == 1
    assert grown('keras_transformer_request_seconds_count{method="REST predict"}') == 2
    assert grown("keras_transformer_queue_seconds_count") == 2
    assert grown("keras_transformer_batch_size_sum") == 2
    assert grown("keras_transformer_tokens_total") > 0


def test_a_client_that_has_gone_costs_nothing_more(server):
    before = metrics(server)["keras_transformer_batch_size_sum"]
    body = json.dumps({"instances": ["mind " * 9] * 1000}).encode()
    with socket.create_connection(("127.0.0.1", server.rest_port)) as connection:
        head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        wait_until(lambda: metrics(server)["keras_transformer_batch_size_sum"] > before)
    wait_until(lambda: metrics(server)["keras_transformer_waiting_rows"] == 0)
    assert metrics(server)["keras_transformer_batch_size_sum"] - before < 1000
