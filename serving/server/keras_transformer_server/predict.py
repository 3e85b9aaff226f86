"""What every way to ask comes down to: a model, a signature, arrays in, arrays out."""

import functools
from collections.abc import AsyncIterator, Mapping, Sequence

import grpc
import numpy as np
import tensorflow as tf

from keras_transformer_server.batcher import Batcher
from keras_transformer_server.errors import RequestError, invalid
from keras_transformer_server.metrics import Metrics
from keras_transformer_server.model import Model
from keras_transformer_server.settings import Settings
from keras_transformer_server.versions import Models


class Predictor:
    """Runs signatures: those that work row by row together with other requests' rows."""

    def __init__(self, models: Models, batcher: Batcher, settings: Settings, metrics: Metrics):
        self.models = models
        self.settings = settings
        self.metrics = metrics
        self._batcher = batcher
        self._num_streams = 0

    @property
    def num_waiting(self) -> int:
        return self._batcher.num_waiting

    async def predict(
        self,
        model: Model,
        signature_name: str,
        arrays: Mapping[str, np.ndarray],
        output_filter: Sequence[str] = (),
        deadline: float = float("inf"),
    ) -> dict[str, np.ndarray]:
        """The outputs of a signature, or those of them that the filter names."""
        signature = model.signature(signature_name)
        signature.check(arrays)
        self._check_sizes(arrays)
        for name in output_filter:
            if name not in signature.outputs:
                raise invalid(
                    f"output_filter has {name!r}; the signature {signature.name!r} gives "
                    f"{', '.join(sorted(signature.outputs))}."
                )
        counts = {len(array) for array in arrays.values() if array.ndim}
        if signature.is_by_row and counts and counts != {0} and len(counts) == 1:
            outputs = await self._predict_rows(model, signature, arrays, deadline)
        else:
            rows = max(counts, default=1)
            if rows > self.settings.max_batch_size:
                raise invalid(
                    f"inputs have {rows} rows; the signature {signature.name!r}, whose answers are "
                    f"not put together, takes at most {self.settings.max_batch_size} here."
                )
            outputs = await self._alone(
                lambda: _to_numpy(model.run(signature, arrays)), deadline, max(rows, 1)
            )
        if "lengths" in outputs:
            self.metrics.tokens.inc(int(outputs["lengths"].sum()))
        return {name: outputs[name] for name in output_filter or outputs}

    async def stream(self, model: Model, text: str, deadline: float) -> AsyncIterator[dict]:
        """The outputs of `step`, place by place, until the translation is finished."""
        start, step = model.signature("start"), model.signature("step")
        arrays = {"text": np.array([text.encode("utf-8")], object)}
        self._check_sizes(arrays)
        if self._num_streams >= self.settings.max_streams:
            raise RequestError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._num_streams} translations are being streamed, as many as may be. "
                "Try again later.",
            )
        self._num_streams += 1
        self.metrics.streams.inc()
        try:
            state = await self._alone(lambda: model.run(start, arrays), deadline)
            finished = False
            while not finished:
                # What a step does not return has not changed. It stays in TensorFlow's hands.
                state |= await self._alone(functools.partial(model.run, step, state), deadline)
                finished = bool(state["finished"].numpy().all())
                self.metrics.tokens.inc()
                yield state
        finally:
            self._num_streams -= 1
            self.metrics.streams.dec()

    async def _predict_rows(self, model, signature, arrays, deadline):
        rows = list(zip(*(arrays[name] for name in signature.inputs), strict=True))
        lengths = [
            max((len(value) for value in row if isinstance(value, bytes)), default=0)
            for row in rows
        ]

        def run(rows):
            columns = zip(*rows, strict=True)
            outputs = _to_numpy(
                model.run(
                    signature,
                    {name: list(column)
                     for name, column in zip(signature.inputs, columns, strict=True)},
                )
            )  # fmt: skip
            return list(zip(*(outputs[name] for name in signature.outputs), strict=True))

        results = await self._batcher.submit((model, signature.name), run, rows, lengths, deadline)
        dtypes = {name: spec.dtype.as_numpy_dtype for name, spec in signature.outputs.items()}
        columns = zip(*results, strict=True)
        return {
            name: np.array(column, dtypes[name])
            for name, column in zip(signature.outputs, columns, strict=True)
        }

    async def _alone(self, run, deadline, rows=1):
        """Runs something that nothing else may join, in its turn."""
        (result,) = await self._batcher.submit(
            None, lambda _: [run()], [None], [0], deadline, size=rows
        )
        return result

    def _check_sizes(self, arrays):
        for name, array in arrays.items():
            if array.ndim and len(array) > self.settings.max_request_rows:
                raise invalid(
                    f"inputs[{name!r}] has {len(array)} rows; this server takes at most "
                    f"{self.settings.max_request_rows} in a request."
                )
            if array.dtype == object:
                longest = max(map(len, array.ravel()), default=0)
                if longest > self.settings.max_text_bytes:
                    raise invalid(
                        f"inputs[{name!r}] has a text of {longest} bytes; this server takes at "
                        f"most {self.settings.max_text_bytes}."
                    )


def _to_numpy(outputs: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in outputs.items()}
