"""A server from beginning to end: load, listen, say so, serve, finish what is in flight."""

import asyncio
import concurrent.futures
import ctypes
import logging
import os
import platform
import signal
from pathlib import Path

import grpc
import tensorflow as tf
from aiohttp import web
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from tensorflow_serving.apis import model_service_pb2, prediction_service_pb2  # noqa: F401 reflected

from keras_transformer_server.api import (
    MODEL_SERVICE,
    PREDICTION_SERVICE,
    ModelService,
    PredictionService,
)
from keras_transformer_server.batcher import Batcher
from keras_transformer_server.handlers import make_handler
from keras_transformer_server.metrics import Metrics
from keras_transformer_server.predict import Predictor
from keras_transformer_server.rest import make_app
from keras_transformer_server.security import (
    TokenInterceptor,
    Tokens,
    server_credentials,
    ssl_context,
)
from keras_transformer_server.settings import Settings, SettingsError
from keras_transformer_server.translation import TRANSLATION_SERVICE, TranslationService
from keras_transformer_server.versions import Models, Wanted

SERVICES = (PREDICTION_SERVICE, MODEL_SERVICE, TRANSLATION_SERVICE)
log = logging.getLogger(__name__)


def serve(settings: Settings, say=print) -> None:
    """Serves until SIGTERM or SIGINT, and returns when what was in flight is done."""
    _keep_freed_memory()
    replicas = settings.replicas or os.cpu_count() or 1
    # Executions side by side use the cores better than one that is spread over them.
    tf.config.threading.set_inter_op_parallelism_threads(replicas)
    tf.config.threading.set_intra_op_parallelism_threads(max(1, (os.cpu_count() or 1) // replicas))
    asyncio.run(_serve(settings, replicas, say))


def _keep_freed_memory():
    """Asks the C library, where it can be asked, not to give memory back after each execution."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD: tensors come from the heap
        ctypes.CDLL(None).mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD: which does not shrink


async def _serve(settings, replicas, say):
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    tokens = Tokens(settings.token_file)
    credentials, context = server_credentials(settings), ssl_context(settings)
    if settings.token_file and not credentials and settings.host not in ("127.0.0.1", "::1"):
        log.warning("tokens will travel for all to read: give a certificate and a key for TLS")
    metrics = Metrics()
    models = Models({settings.name: Wanted(Path(settings.directory))}, settings.poll_seconds)
    await _load(models, settings)
    with concurrent.futures.ThreadPoolExecutor(replicas) as pool:
        batcher = Batcher(
            pool,
            replicas,
            settings.max_batch_size,
            settings.batch_timeout_ms / 1000,
            settings.max_waiting_rows,
            metrics.observe_batch,
        )
        batcher.start()
        predictor = Predictor(models, batcher, settings, metrics)
        runner, rest_port = await _listen_rest(settings, predictor, tokens, context)
        try:
            server, status, port = await _listen(settings, predictor, tokens, credentials)
        except SettingsError:
            await _stop_rest(runner)
            raise
        watching = asyncio.create_task(models.watch())
        rest = "" if rest_port is None else f", REST on port {rest_port}"
        say(f"ready: {settings.name!r} on {settings.host}: gRPC on port {port}{rest}", flush=True)

        await stopped.wait()
        log.info("stopping: what is in flight has %g s", settings.grace_seconds)
        watching.cancel()
        await status.enter_graceful_shutdown()
        refusing = asyncio.create_task(server.stop(settings.grace_seconds))
        await asyncio.gather(_stop_rest(runner), _until_idle(metrics, refusing))
        await server.stop(0.5)  # who only watches our health does not hold us up
        await batcher.stop()
    say("stopped", flush=True)


async def _load(models, settings):
    """Loads what is there; nothing that can be served is a reason not to start."""
    await models.look(at_once=True)
    if not models.all_ready:
        raise SettingsError(f"nothing to serve: {'; '.join(models.problems(settings.name))}.")


async def _listen(settings, predictor, tokens, credentials):
    size = settings.max_message_mb * 2**20
    server = grpc.aio.server(
        interceptors=[TokenInterceptor(tokens, predictor.metrics)],
        options=[
            ("grpc.max_receive_message_length", size),
            ("grpc.max_send_message_length", size),
            ("grpc.so_reuseport", 0),  # a port that is taken is an error
        ],
    )
    translation = TranslationService(predictor)
    for name, service, streams in (
        (PREDICTION_SERVICE, PredictionService(predictor), {}),
        (MODEL_SERVICE, ModelService(predictor), {}),
        (TRANSLATION_SERVICE, translation, translation.streams()),
    ):
        handler = make_handler(name, service.methods(), streams, predictor.metrics)
        server.add_generic_rpc_handlers([handler])
    status = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    for name in ("", *SERVICES):
        await status.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection(
        (*SERVICES, "grpc.health.v1.Health", reflection.SERVICE_NAME), server
    )
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"{host}:{settings.port}"
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError:
        raise SettingsError(
            f"{address} cannot be listened on. Choose another --port, or 0 for a free one."
        ) from None
    await server.start()
    return server, status, port


async def _listen_rest(settings, predictor, tokens, context):
    if settings.rest_port < 0:
        return None, None
    app = make_app(predictor, tokens, settings.max_message_mb * 2**20)
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=settings.grace_seconds,
        handler_cancellation=True,  # a client that has gone costs nothing more
    )
    await runner.setup()
    site = web.TCPSite(runner, settings.host, settings.rest_port, ssl_context=context)
    try:
        await site.start()
    except OSError as error:
        raise SettingsError(
            f"{settings.host}:{settings.rest_port}: {error.strerror}. Choose another --rest-port, "
            "0 for a free one, or -1 for none."
        ) from None
    return runner, runner.addresses[0][1]


async def _until_idle(metrics, stopped):
    """Waits until no call is in flight, or the time for that is up."""
    while metrics.num_in_flight and not stopped.done():
        await asyncio.sleep(0.05)


async def _stop_rest(runner):
    if runner is not None:
        await runner.cleanup()
