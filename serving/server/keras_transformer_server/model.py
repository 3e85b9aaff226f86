"""One version of a model: a SavedModel in memory."""

import dataclasses
import logging
import re
from collections.abc import Mapping
from pathlib import Path

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401 its ops
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, prediction_log_pb2

from keras_transformer_server.codec import to_array
from keras_transformer_server.errors import RequestError, invalid, not_found

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of a model, and what it takes and gives, by name."""

    name: str
    function: object
    inputs: Mapping[str, tf.TensorSpec]
    outputs: Mapping[str, tf.TensorSpec]

    @property
    def is_by_row(self) -> bool:
        """Whether rows of several requests may run together.

        Each input and output must have a value for each row and nothing beside: the size of a
        matrix that is padded to the longest row would depend on strangers.
        """
        specs = [*self.inputs.values(), *self.outputs.values()]
        return all(spec.shape.rank == 1 and spec.shape[0] is None for spec in specs)

    def check(self, arrays: Mapping[str, np.ndarray | tf.TensorSpec]) -> None:
        """Refuses what the function cannot take."""
        for name in sorted(arrays.keys() - self.inputs.keys()):
            raise invalid(f"inputs[{name!r}] is unknown; {self._expects()}.")
        for name, spec in self.inputs.items():
            if name not in arrays:
                raise invalid(f"inputs[{name!r}] is missing; {self._expects()}.")
            array = arrays[name]
            dtype = tf.dtypes.as_dtype(array.dtype)  # of objects: strings
            if dtype != spec.dtype:
                raise invalid(
                    f"inputs[{name!r}].dtype is {dtype.name}; expected {spec.dtype.name}."
                )
            if not spec.shape.is_compatible_with(array.shape):
                raise invalid(
                    f"inputs[{name!r}] has the shape {list(array.shape)}; "
                    f"expected {describe_shape(spec.shape)}."
                )

    def _expects(self):
        return f"the signature {self.name!r} takes {', '.join(sorted(self.inputs))}"


class Model:
    """A version of a model that has been loaded.

    Args:
        path: its directory.
        version: its number.
    """

    def __init__(self, path: Path, version: int):
        self.version = version
        self._loaded = tf.saved_model.load(str(path))  # kept, for it holds the weights
        self.signatures = {
            name: Signature(
                name, function, function.structured_input_signature[1], function.structured_outputs
            )
            for name, function in self._loaded.signatures.items()
        }
        self.signature_map = get_model_metadata_pb2.SignatureDefMap()
        saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
        for name in self.signatures:
            self.signature_map.signature_def[name].CopyFrom(
                saved.meta_graphs[0].signature_def[name]
            )

    def signature(self, name: str) -> Signature:
        name = name or "serving_default"
        if name not in self.signatures:
            raise not_found(
                f"model_spec.signature_name is {name!r}; the model has "
                f"{', '.join(sorted(self.signatures))}."
            )
        return self.signatures[name]

    def run(self, signature: Signature, arrays: Mapping) -> dict[str, tf.Tensor]:
        """The outputs of a function; blocks until they are there."""
        try:
            return signature.function(**{name: tf.constant(arrays[name], spec.dtype)
                                         for name, spec in signature.inputs.items()})  # fmt: skip
        except tf.errors.OpError as error:
            raise _explain(signature, error) from None

    def warm_up(self, path: Path) -> None:
        """Runs the requests that came with the model, so that the first real one need not wait."""
        records = path / "assets.extra" / "tf_serving_warmup_requests"
        if not records.exists():
            return
        for record in tf.data.TFRecordDataset(str(records)).as_numpy_iterator():
            request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
            arrays = {name: to_array(name, tensor) for name, tensor in request.inputs.items()}
            self.run(self.signature(request.model_spec.signature_name), arrays)


def describe_shape(shape: tf.TensorShape) -> str:
    if shape.rank is None:
        return "any"
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"


def _explain(signature, error):
    """What a client may know of an error in the graph: not where in our code it came from."""
    log.warning("the signature %r failed: %s", signature.name, error.message.splitlines()[0][:200])
    # What an Assert of the model says is meant to be read.
    said = re.search(r"assertion failed: (\[.*?\]) *\[", error.message, re.DOTALL)
    if said:
        return invalid(f"The model refused the inputs of {signature.name!r}: {said[1]}")
    if isinstance(error, (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError)):
        return invalid(f"The inputs of {signature.name!r} do not fit together.")
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return RequestError(grpc.StatusCode.RESOURCE_EXHAUSTED, "The request needs more memory "
                            "than there is. Send fewer or shorter rows.")  # fmt: skip
    return RequestError(grpc.StatusCode.INTERNAL, f"The signature {signature.name!r} failed.")
