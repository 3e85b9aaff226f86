"""Who may ask: TLS, mutual TLS and bearer tokens."""

import hmac
import ssl
from pathlib import Path

import grpc

from keras_transformer_server.metrics import Metrics
from keras_transformer_server.settings import Settings, SettingsError

HEALTH = "/grpc.health.v1.Health/"


def server_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """What gRPC needs for TLS, if that is wanted."""
    if not settings.certificate:
        return None
    certificates = _read(settings.client_ca) if settings.client_ca else None
    return grpc.ssl_server_credentials(
        [(_read(settings.key), _read(settings.certificate))],
        root_certificates=certificates,
        require_client_auth=certificates is not None,
    )


def ssl_context(settings: Settings) -> ssl.SSLContext | None:
    """The same for REST."""
    if not settings.certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.certificate, settings.key)
        if settings.client_ca:
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"{settings.certificate}: TLS cannot use it: {error}.") from None
    return context


class Tokens:
    """The bearer tokens that are let in; without a file, everyone is."""

    def __init__(self, path: str | None):
        self._tokens = None
        if path is not None:
            self._tokens = [line for line in _read(path).splitlines() if line.strip()]
            if not self._tokens:
                raise SettingsError(f"{path}: no token is in it. Write one on a line.")

    def let_in(self, authorization: str | None) -> bool:
        """Whether the value of the header `authorization` has one of the tokens."""
        if self._tokens is None:
            return True
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        given = token.strip().encode("utf-8", "surrogateescape")
        # All are compared, in constant time: how long it takes tells nothing.
        return sum(hmac.compare_digest(given, one.strip()) for one in self._tokens) > 0


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a token, except for those that ask whether the server is well."""

    def __init__(self, tokens: Tokens, metrics: Metrics):
        self._tokens = tokens
        self._metrics = metrics
        self._refusal = grpc.unary_unary_rpc_method_handler(_refuse)

    async def intercept_service(self, continuation, details):
        authorization = dict(details.invocation_metadata).get("authorization")
        if details.method.startswith(HEALTH) or self._tokens.let_in(authorization):
            return await continuation(details)
        method = details.method.rpartition("/")[2]
        self._metrics.requests.labels(method, grpc.StatusCode.UNAUTHENTICATED.name).inc()
        return self._refusal


async def _refuse(request, context):
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "Send authorization: Bearer TOKEN.")


def _read(path):
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}.") from None
