"""gRPC's side of a call: bytes in, bytes out, and every failure an answer with a code."""

import asyncio
import contextlib
import logging
import time

import grpc
from google.protobuf.message import DecodeError

from keras_transformer_server.errors import RequestError, invalid
from keras_transformer_server.metrics import Metrics

log = logging.getLogger(__name__)


def make_handler(service: str, methods: dict, streams: dict, metrics: Metrics):
    """The handler of a service.

    Args:
        service: its full name.
        methods: name: (type of the request, async function of request and deadline).
        streams: the same for functions that yield several responses.
        metrics: where calls are counted.
    """
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(_unary(name, *method, metrics))
        for name, method in methods.items()
    }
    handlers |= {
        name: grpc.unary_stream_rpc_method_handler(_stream(name, *method, metrics))
        for name, method in streams.items()
    }
    return grpc.method_handlers_generic_handler(service, handlers)


# Requests come as bytes and are parsed here, because gRPC would answer INTERNAL for those that
# cannot be.


def _unary(name, request_type, answer, metrics):
    async def handle(data, context):
        async with _answered(name, context, metrics):
            response = await answer(_parse(request_type, data), _deadline(context))
            return response.SerializeToString()

    return handle


def _stream(name, request_type, answer, metrics):
    async def handle(data, context):
        async with _answered(name, context, metrics):
            responses = answer(_parse(request_type, data), _deadline(context))
            async with contextlib.aclosing(responses):
                async for response in responses:
                    yield response.SerializeToString()

    return handle


@contextlib.asynccontextmanager
async def _answered(name, context, metrics):
    """Makes a failure in the block the answer, and counts and times the call by its code."""
    began, code = time.monotonic(), grpc.StatusCode.OK
    metrics.num_in_flight += 1
    try:
        yield
        return
    except RequestError as error:
        code, message = error.code, str(error)
    except (asyncio.CancelledError, GeneratorExit):  # the client has gone
        code = grpc.StatusCode.CANCELLED
        raise
    except Exception:
        log.exception("%s failed", name)
        code, message = grpc.StatusCode.INTERNAL, "The server failed; see its log."
    finally:
        metrics.num_in_flight -= 1
        metrics.requests.labels(name, code.name).inc()
        metrics.seconds.labels(name).observe(time.monotonic() - began)
    await context.abort(code, message)


def _parse(request_type, data):
    try:
        return request_type.FromString(data)
    except DecodeError:
        raise invalid(
            f"The bytes are no {request_type.DESCRIPTOR.full_name}; its text must be UTF-8."
        ) from None


def _deadline(context):
    remaining = context.time_remaining()
    return float("inf") if remaining is None else time.monotonic() + remaining
