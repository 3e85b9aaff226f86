"""TensorFlow Serving's REST API, and metrics for Prometheus."""

import base64
import json
import time

import grpc
import numpy as np
from aiohttp import web
from google.protobuf import json_format
from prometheus_client import exposition
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

from keras_transformer_server.api import ModelService, PredictionService
from keras_transformer_server.errors import RequestError, invalid, shorten
from keras_transformer_server.handlers import log
from keras_transformer_server.security import Tokens

HTTP = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
MODEL = "/v1/models/{name:[^/:]+}"
VERSIONED = ("", "/versions/{version:[0-9]+}", "/labels/{label:[^/:]+}")
SECONDS = 60.0  # the deadline of a request, as HTTP has none


def make_app(predictor, tokens: Tokens, max_message_bytes: int) -> web.Application:
    """The application with all paths."""
    rest = Rest(predictor)

    @web.middleware
    async def answer(request, handler):
        """Turns every failure into JSON, and counts."""
        began, code = time.monotonic(), grpc.StatusCode.OK
        method = f"REST {handler.__name__}"
        try:
            if not tokens.let_in(request.headers.get("authorization")):
                raise RequestError(
                    grpc.StatusCode.UNAUTHENTICATED, "Send authorization: Bearer TOKEN."
                )
            return await handler(request)
        except RequestError as error:
            code = error.code
            return _error(HTTP.get(code, 500), str(error))
        except web.HTTPException as error:
            code, method = grpc.StatusCode.INVALID_ARGUMENT, "REST"
            return _error(error.status, f"{request.method} {request.path}: {error.reason}.")
        except Exception:
            log.exception("%s failed", method)
            code = grpc.StatusCode.INTERNAL
            return _error(500, "The server failed; see its log.")
        finally:
            predictor.metrics.requests.labels(method, code.name).inc()
            predictor.metrics.seconds.labels(method).observe(time.monotonic() - began)

    app = web.Application(middlewares=[answer], client_max_size=max_message_bytes)
    for version in VERSIONED:
        app.router.add_get(MODEL + version, rest.status)
        app.router.add_get(f"{MODEL}{version}/metadata", rest.metadata)
        app.router.add_post(f"{MODEL}{version}:predict", rest.predict)
    app.router.add_get("/monitoring/prometheus/metrics", rest.prometheus)
    return app


class Rest:
    """What the paths do."""

    def __init__(self, predictor):
        self.predictor = predictor
        self.prediction = PredictionService(predictor)
        self.model = ModelService(predictor)

    async def status(self, request):
        asked = get_model_status_pb2.GetModelStatusRequest()
        _fill(asked.model_spec, request)
        return _json(await self.model.status(asked, None))

    async def metadata(self, request):
        asked = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        _fill(asked.model_spec, request)
        return _json(await self.prediction.metadata(asked, None))

    async def predict(self, request):
        body = await _read(request)
        chosen = request.match_info
        with self.predictor.models.use(
            chosen["name"],
            _version(chosen["version"]) if "version" in chosen else None,
            chosen.get("label"),
        ) as model:
            name = body.get("signature_name", "")
            if not isinstance(name, str):
                raise invalid(f"signature_name is {shorten(name)}; expected text.")
            signature = model.signature(name)
            try:
                arrays = _read_inputs(signature, body)
            except RecursionError:
                raise invalid("The inputs are nested too deeply.") from None
            outputs = await self.predictor.predict(
                model, signature.name, arrays, (), time.monotonic() + SECONDS
            )
        columns = {key: _plain(key, array) for key, array in outputs.items()}
        if "inputs" in body:
            return web.json_response({"outputs": _unwrap(columns)})
        if len({array.shape[:1] for array in outputs.values()} | {(len(body["instances"]),)}) > 1:
            raise invalid(f'{signature.name!r} does not work row by row: ask it with "inputs".')
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return web.json_response({"predictions": [_unwrap(row) for row in rows]})

    async def prometheus(self, request):
        metrics = self.predictor.metrics
        metrics.waiting.set(self.predictor.num_waiting)
        encode, content_type = exposition.choose_encoder(request.headers.get("accept", ""))
        return web.Response(body=encode(metrics.registry), headers={"Content-Type": content_type})


async def _read(request):
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError):
        raise invalid("The body is no JSON.") from None
    if not isinstance(body, dict) or ("instances" in body) == ("inputs" in body):
        raise invalid('The body must be {"instances": [...]} or {"inputs": ...}.')
    return body


def _read_inputs(signature, body):
    """The arrays of a request, by rows ("instances") or by columns ("inputs")."""
    names = list(signature.inputs)
    if "inputs" in body:
        columns = body["inputs"]
        if not isinstance(columns, dict):  # of the only input
            _check_single(names, "inputs")
            columns = {names[0]: columns}
    else:
        rows = body["instances"]
        if not isinstance(rows, list) or not rows:
            raise invalid(f"instances is {shorten(rows)}; expected a list with a value or more.")
        if not all(isinstance(row, dict) and "b64" not in row for row in rows):
            _check_single(names, "instances")
            rows = [{names[0]: row} for row in rows]
        if any(row.keys() != rows[0].keys() for row in rows):
            raise invalid("instances do not all have the same inputs.")
        columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {
        name: _array(name, value, signature.inputs[name].dtype if name in names else None)
        for name, value in columns.items()
    }


def _check_single(names, field):
    if len(names) != 1:
        raise invalid(f"{field} has no names; the signature takes {', '.join(sorted(names))}.")


def _array(name, value, dtype):
    if dtype is None:  # the signature has no such input, and says so later
        return np.zeros(0)
    if dtype.name == "string":
        value = _strings(name, value)
    try:
        array = np.array(value, object if dtype.name == "string" else None)
        if array.dtype == object and not all(isinstance(one, bytes) for one in array.flat):
            raise ValueError  # lists of several lengths
        if dtype.name != "string":
            if array.size and array.dtype.kind not in ("f" if dtype.is_floating else "") + "iub":
                raise ValueError
            if array.dtype.kind == "b" and dtype.name != "bool":
                raise ValueError
            limited = array.astype(dtype.as_numpy_dtype)
            if dtype.is_integer and not np.array_equal(limited, array):
                raise ValueError
            array = limited
    except (ValueError, OverflowError, TypeError):
        raise invalid(f"{name} is {shorten(value)}; expected {dtype.name}.") from None
    return array


def _strings(name, value):
    """Text as bytes, in lists that may be nested; {"b64": ...} for bytes that are no text."""
    if isinstance(value, list):
        return [_strings(name, one) for one in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except ValueError:
            raise invalid(f"{name} has b64 that is not base64.") from None
    raise invalid(f"{name} is {shorten(value)}; expected text.")


def _plain(name, array):
    """An output as nested lists for JSON."""
    if array.dtype != object:
        return array.tolist()
    if name.endswith("_bytes"):
        convert = lambda one: {"b64": base64.b64encode(one).decode()}  # noqa: E731
    else:
        convert = lambda one: one.decode("utf-8", "replace")  # noqa: E731
    flat = np.empty(array.size, object)
    flat[:] = [convert(one) for one in array.ravel()]
    return flat.reshape(array.shape).tolist()


def _unwrap(outputs):
    """The value itself where there is only one output, as TensorFlow Serving gives it."""
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def _fill(spec, request):
    chosen = request.match_info
    spec.name = chosen["name"]
    if "version" in chosen:
        spec.version.value = _version(chosen["version"])
    elif "label" in chosen:
        spec.version_label = chosen["label"]


def _version(text):
    if len(text) > 18:
        raise invalid(f"The version {shorten(text)} is too large a number.")
    return int(text)


def _json(message):
    text = json_format.MessageToJson(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return web.Response(text=text, content_type="application/json")


def _error(status, message):
    return web.json_response({"error": message}, status=status)
