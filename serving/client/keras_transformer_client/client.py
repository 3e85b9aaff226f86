"""The client: one that waits, and the same for asyncio."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import grpc
import grpc.aio

from keras_transformer_client import calls
from keras_transformer_client.connection import CallError, Connection, pauses


class _Methods:
    """What both clients offer. `_run` makes a call: at once, or as something to await."""

    def __init__(
        self,
        address: str,
        model: str = "default",
        version: int | None = None,
        label: str | None = None,
        **options,
    ):
        if version is not None and label is not None:
            raise ValueError("version and label: give one of them.")
        self.connection = Connection(address, **options)
        self.target = calls.Target(model, version, label)
        self._channel = self.connection.open(self._library)

    def translate(
        self,
        text: str | Sequence[str],
        *,
        greedy: bool = False,
        prefix: str | Sequence[str] | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        timeout: float | None = None,
    ):
        """The translation of a text, or of each text of a list.

        Args:
            text: one, or several.
            greedy: takes the most probable token each time, which is faster than beams.
            prefix: what the translation begins with; one for each text.
            temperature, top_k, top_p, seed: any of these has the translation drawn. The second text
                is drawn with the next seed, and so on.
            timeout: in seconds, with all tries; the client's own by default.
        """
        sampling = dict(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        return self._run(calls.translate(self.target, text, greedy, prefix, **sampling), timeout)

    def n_best(self, text: str | Sequence[str], *, timeout: float | None = None):
        """The best `Hypothesis` objects of a text, or of each text of a list, best first."""
        return self._run(calls.n_best(self.target, text), timeout)

    def score(
        self,
        text: str | Sequence[str],
        translation: str | Sequence[str],
        *,
        timeout: float | None = None,
    ):
        """The score of a given translation; of several, of each."""
        return self._run(calls.score(self.target, text, translation), timeout)

    def predict(self, signature: str, *, timeout: float | None = None, **arrays: Any):
        """The outputs of any signature by name, as NumPy arrays."""
        return self._run(calls.predict(self.target, signature, arrays), timeout)

    def metadata(self, *, timeout: float | None = None):
        """The signatures by name, with the type and shape of each of their inputs and outputs."""
        return self._run(calls.metadata(self.target), timeout)

    def _deadline(self, timeout):
        return time.monotonic() + (self.connection.timeout if timeout is None else timeout)

    def _begin(self, call, deadline, kind="unary_unary"):
        """Sends a call: its response, its responses, or what to await for those."""
        method = getattr(self._channel, kind)(
            call.method,
            request_serializer=type(call.request).SerializeToString,
            response_deserializer=call.response.FromString,
        )
        remaining = max(0.0, deadline - time.monotonic())
        return method(call.request, timeout=remaining, metadata=self.connection.metadata)


class Client(_Methods):
    """Asks a server that speaks TensorFlow Serving's API: this project's, or the original.

    Every call has a deadline. A call that found no server, or lost it (UNAVAILABLE), is tried again
    until then, with growing pauses; nothing else is. Any other answer than a result is raised as a
    `CallError`. A client may be shared by threads, and is closed by `close` or `with`.

    Args:
        address: as in "localhost:8500".
        model: the name that the server gives the model.
        version: a certain version of it; by default the latest.
        label: or the version with this label.
        timeout: in seconds, of every call that is not given another.
        tls: speak TLS.
        ca: a file of certificates to trust, instead of the system's.
        certificate, key: files with which this client proves who it is (mutual TLS).
        token: sent with every call, as a bearer token.
        max_message_mb: the largest message, in MiB.

    Example:

    >>> from keras_transformer_client import Client
    >>> with Client("localhost:8500") as client:  # doctest: +SKIP
    ...     client.translate("Monday, 3 June 2024")
    '2024-06-03'
    """

    _library = grpc

    def stream(self, text: str, *, timeout: float | None = None) -> Iterator[calls.Token]:
        """Yields each `Token` of a translation as soon as it is decoded.

        Leaving the loop early stops the server's work.
        """
        call = calls.stream(self.target, text)
        deadline = self._deadline(timeout)
        begun = False
        pausing = pauses()
        while True:
            responses = self._begin(call, deadline, "unary_stream")
            try:
                for response in responses:
                    begun = True
                    yield call.read(response)
                return
            except grpc.RpcError as error:
                pause = next(pausing)
                if begun or not _try_again(error, deadline, pause):
                    raise _explained(error) from None
            finally:
                responses.cancel()
            time.sleep(pause)

    def healthy(self, *, timeout: float = 5.0) -> bool:
        """Whether the server is there and serves."""
        try:
            return self._run(calls.health(), timeout, retry=False)
        except CallError as error:
            if error.code is not grpc.StatusCode.UNIMPLEMENTED:
                return False
        try:
            return self._run(calls.status(self.target), timeout, retry=False)
        except CallError:
            return False

    def close(self) -> None:
        self._channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _run(self, call, timeout=None, retry=True):
        deadline = self._deadline(timeout)
        pausing = pauses()
        while True:
            try:
                return call.read(self._begin(call, deadline))
            except grpc.RpcError as error:
                pause = next(pausing)
                if not (retry and _try_again(error, deadline, pause)):
                    raise _explained(error) from None
            time.sleep(pause)


class AsyncClient(_Methods):
    """`Client` for asyncio: the same methods, to be awaited, and `stream` for `async for`."""

    _library = grpc.aio

    async def stream(
        self, text: str, *, timeout: float | None = None
    ) -> AsyncIterator[calls.Token]:
        call = calls.stream(self.target, text)
        deadline = self._deadline(timeout)
        begun = False
        pausing = pauses()
        while True:
            responses = self._begin(call, deadline, "unary_stream")
            try:
                async for response in responses:
                    begun = True
                    yield call.read(response)
                return
            except grpc.RpcError as error:
                pause = next(pausing)
                if begun or not _try_again(error, deadline, pause):
                    raise _explained(error) from None
            finally:
                responses.cancel()
            await asyncio.sleep(pause)

    async def healthy(self, *, timeout: float = 5.0) -> bool:
        try:
            return await self._run(calls.health(), timeout, retry=False)
        except CallError as error:
            if error.code is not grpc.StatusCode.UNIMPLEMENTED:
                return False
        try:
            return await self._run(calls.status(self.target), timeout, retry=False)
        except CallError:
            return False

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    async def _run(self, call, timeout=None, retry=True):
        deadline = self._deadline(timeout)
        pausing = pauses()
        while True:
            try:
                return call.read(await self._begin(call, deadline))
            except grpc.RpcError as error:
                pause = next(pausing)
                if not (retry and _try_again(error, deadline, pause)):
                    raise _explained(error) from None
            await asyncio.sleep(pause)


def _try_again(error, deadline, pause):
    return error.code() is grpc.StatusCode.UNAVAILABLE and time.monotonic() + pause < deadline


def _explained(error):
    code, details = error.code(), error.details() or "no explanation was given"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        details += " (TensorFlow Serving itself has no streams: translate works with both)"
    return CallError(code, details)
