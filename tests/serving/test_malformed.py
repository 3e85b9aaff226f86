"""Requests as no client would make them."""

import asyncio
import collections
import random

import grpc
from keras_transformer_client import protos
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2, predict_pb2

from tests.serving.conftest import refused
from tests.serving.test_api import request
from tests.serving.test_rest import ask

PREDICTION = "/tensorflow.serving.PredictionService/"
PROPER = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.PERMISSION_DENIED,
}
SIGNATURES = {
    "serving_default": ["text"],
    "greedy": ["text"],
    "n_best": ["text"],
    "prefixed": ["text", "prefix"],
    "score": ["text", "target"],
    "sample": ["text", "temperature", "top_k", "top_p", "seed"],
    "decode_ids": ["ids", "lengths"],
    "no such thing": ["text"],
}
NAMES = sorted({name for names in SIGNATURES.values() for name in names} | {"", "\0", "TEXT"})

OTHERS = [
    "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
    "/tensorflow.serving.ModelService/GetModelStatus",
    PREDICTION + "Classify",
    "/keras_transformer.v1.Translation/Translate",
]


def code_of(call, *arguments):
    try:
        call(*arguments)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def random_tensor(chance):
    """A tensor whose parts need not fit each other."""
    tensor = tensor_pb2.TensorProto(dtype=chance.choice([0, 1, 3, 3, 7, 7, 7, 9, 10, 14, 20, 101]))
    for _ in range(chance.choice([0, 1, 1, 1, 2, 2, 3])):
        tensor.tensor_shape.dim.add(size=chance.choice([-1, 0, 1, 1, 2, 3, 5, 10**6, 2**40, 2**62]))
    tensor.tensor_shape.unknown_rank = chance.random() < 0.05
    count = chance.choice([0, 1, 1, 2, 3, 5])
    for field, make in {
        "string_val": lambda: chance.randbytes(chance.choice([0, 1, 10, 300])),
        "float_val": lambda: chance.choice([0.0, 1.0, -1.0, float("nan"), float("inf"), 3e38]),
        "int_val": lambda: chance.choice([0, 1, -1, 5, 2**31 - 1, -(2**31)]),
        "int64_val": lambda: chance.choice([0, -1, 2**63 - 1]),
        "bool_val": lambda: True,
    }.items():
        if chance.random() < 0.4:
            getattr(tensor, field).extend(make() for _ in range(count))
    if chance.random() < 0.2:
        tensor.tensor_content = chance.randbytes(chance.choice([1, 4, 8, 12, 100]))
    return tensor


def random_predict(chance):
    made = predict_pb2.PredictRequest()
    made.model_spec.name = chance.choice(["default"] * 9 + ["", "x", "../../etc"])
    if chance.random() < 0.1:
        made.model_spec.version.value = chance.choice([-1, 0, 1, 2, 2**63 - 1])
    elif chance.random() < 0.1:
        made.model_spec.version_label = chance.choice(["", "stable", "\0"])
    made.model_spec.signature_name = signature = chance.choice(list(SIGNATURES))
    names = SIGNATURES[signature] if chance.random() < 0.8 else chance.sample(NAMES, 3)
    for name in names:
        made.inputs[name].CopyFrom(random_tensor(chance))
    if chance.random() < 0.1:
        made.output_filter.append(chance.choice(["text", "score", "", "nothing"]))
    return made


def nearly_right(chance):
    """A good request with one part that is not."""
    made = request(
        chance.choice(["serving_default", "greedy", "n_best"]),
        text=[chance.randbytes(chance.choice([0, 3, 50])) for _ in range(chance.choice([1, 2, 9]))],
    )
    made.inputs["text"].tensor_shape.dim[0].size += chance.choice([-20, -1, 0, 0, 1, 2**33])
    return made


def random_call(chance):
    """A method, and bytes for it."""
    kind = chance.random()
    if kind < 0.4:
        return PREDICTION + "Predict", random_predict(chance).SerializeToString()
    if kind < 0.6:
        return PREDICTION + "Predict", nearly_right(chance).SerializeToString()
    if kind < 0.7:
        return PREDICTION + "Predict", chance.randbytes(chance.choice([0, 1, 10, 1000]))
    if kind < 0.85:  # some bits turned
        data = bytearray(nearly_right(chance).SerializeToString())
        for _ in range(chance.choice([1, 3, 10])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return PREDICTION + "Predict", bytes(data)
    if kind < 0.9:
        made = get_model_metadata_pb2.GetModelMetadataRequest(
            metadata_field=[chance.choice(["signature_def", "", "x"])]
        )
        made.model_spec.name = chance.choice(["default", "x"])
        return PREDICTION + "GetModelMetadata", made.SerializeToString()
    if kind < 0.92:
        return chance.choice(OTHERS), chance.randbytes(chance.choice([0, 1, 10, 1000]))
    if kind < 0.95:
        made = get_model_status_pb2.GetModelStatusRequest()
        made.model_spec.name = chance.choice(["default", "x"])
        made.model_spec.version.value = chance.choice([-5, 1, 2**62])
        return "/tensorflow.serving.ModelService/GetModelStatus", made.SerializeToString()
    made = protos.TranslateRequest(
        model=protos.Model(name=chance.choice(["default", "x"]), version=chance.choice([0, -1, 7])),
        text=[chr(chance.randrange(32, 0xD000)) for _ in range(chance.choice([0, 1, 3]))],
        n_best=chance.choice([0, 2, -(2**31), 2**31 - 1]),
        greedy=chance.random() < 0.3,
        prefix=["x"] * chance.choice([0, 0, 1, 3]),
    )
    if chance.random() < 0.3:
        made.sampling.temperature = chance.choice([0, -1, float("nan"), float("inf"), 1e-38])
        made.sampling.seed = chance.choice([0, -(2**31), 2**31 - 1])
        made.sampling.top_k = chance.choice([0, -5, 2**31 - 1])
        made.sampling.top_p = chance.choice([0, -1, 2, float("nan")])
    return "/keras_transformer.v1.Translation/Translate", made.SerializeToString()


def test_every_malformed_request_gets_a_proper_answer(server, prediction):
    """2,400 of them, 16 at a time."""
    chance = random.Random(4)
    calls = [random_call(chance) for _ in range(2400)]
    codes = collections.Counter()

    async def ask_all():
        async with grpc.aio.insecure_channel(server.address) as channel:
            at_once = asyncio.Semaphore(16)

            async def ask(method, data):
                async with at_once:
                    try:
                        await channel.unary_unary(method)(data, timeout=60)
                        code, details = grpc.StatusCode.OK, ""
                    except grpc.RpcError as error:
                        code, details = error.code(), error.details()
                assert code in PROPER, (method, data, code, details)
                assert "Traceback" not in details
                assert 'File "' not in details
                assert code is grpc.StatusCode.OK or details
                codes[code] += 1

            await asyncio.gather(*(ask(*call) for call in calls))

    asyncio.run(ask_all())
    assert sum(codes.values()) == 2400
    assert codes[grpc.StatusCode.INVALID_ARGUMENT] > 500
    assert codes[grpc.StatusCode.OK] > 50, "nothing of it was meant well"
    assert server.process.poll() is None
    assert prediction.Predict(request(text=["to be"])).outputs["text"].string_val


def test_states_that_were_changed_on_the_way_do_no_harm(prediction):
    """A stream's state belongs to the client of `start` and `step`, who may send anything."""
    chance, codes = random.Random(5), collections.Counter()
    started = prediction.Predict(request("start", text=["to be or not", "to be"])).outputs
    for _ in range(150):
        asked = predict_pb2.PredictRequest()
        asked.model_spec.name, asked.model_spec.signature_name = "default", "step"
        for name, tensor in started.items():
            if name != "truncated":
                asked.inputs[name].CopyFrom(tensor)
        name = chance.choice(sorted(asked.inputs))
        if chance.random() < 0.5:
            asked.inputs[name].CopyFrom(random_tensor(chance))
        else:
            values = asked.inputs[name].int_val or asked.inputs[name].float_val
            for place in range(len(values)):
                values[place] = chance.choice([0, -1, 10**6, -(2**31), 2**31 - 1])
        codes[code_of(prediction.Predict, asked)] += 1
    assert codes.keys() <= PROPER
    assert codes[grpc.StatusCode.OK] > 5
    assert codes[grpc.StatusCode.INVALID_ARGUMENT] > 5
    assert prediction.Predict(request(text=["to be"])).outputs["text"].string_val


def test_streams_of_anything_are_answered(server):
    chance = random.Random(6)
    with server.channel() as channel:
        call = channel.unary_stream("/keras_transformer.v1.Translation/TranslateStream")
        for _ in range(100):
            text = "".join(chr(chance.randrange(1, 0xD000)) for _ in range(chance.randrange(60)))
            model = protos.Model(
                name=chance.choice(["default", "x"]), version=chance.choice([0, 3])
            )
            data = protos.TranslateStreamRequest(model=model, text=text).SerializeToString()
            if chance.random() < 0.3:
                data = chance.randbytes(30)
            assert code_of(lambda data=data: list(call(data, timeout=60))) in PROPER


def random_json(chance, depth=0):
    kinds = [None, True, 0, -1.5, 2**70, "", "to be", "\ud800", {"b64": "AA=="}, {"b64": 3}]
    if depth < 3 and chance.random() < 0.5:
        names = ["text", "instances", "inputs", "signature_name", "ids", "b64", "x"]
        values = [random_json(chance, depth + 1) for _ in range(chance.randrange(4))]
        named = zip(chance.sample(names, len(values)), values, strict=True)
        return values if chance.random() < 0.5 else dict(named)
    return chance.choice(kinds)


def test_any_json_is_answered(server):
    chance, statuses = random.Random(7), collections.Counter()
    for _ in range(300):
        body = {chance.choice(["instances", "inputs"]): random_json(chance)}
        if chance.random() < 0.5:
            body["signature_name"] = chance.choice([*SIGNATURES, 3])
        status, answer = ask(server, "/v1/models/default:predict", body)
        assert status in (200, 400, 404), (body, answer)
        statuses[status] += 1
    assert statuses[400] > 100
    assert statuses[200] > 3


def test_a_method_that_is_not_there(server):
    with server.channel() as channel:
        code, _ = refused(channel.unary_unary(PREDICTION + "Foretell"), b"")
    assert code is grpc.StatusCode.UNIMPLEMENTED
