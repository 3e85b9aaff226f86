"""Tensors as they come over the network, and as TensorFlow Serving sends them."""

import math

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from keras_transformer_server.errors import invalid, shorten

# The field of TensorProto that holds values of each type.
FIELDS = {
    tf.float32: "float_val",
    tf.float64: "double_val",
    tf.float16: "half_val",
    tf.bfloat16: "half_val",
    tf.int8: "int_val",
    tf.uint8: "int_val",
    tf.int16: "int_val",
    tf.uint16: "int_val",
    tf.int32: "int_val",
    tf.uint32: "uint32_val",
    tf.int64: "int64_val",
    tf.uint64: "uint64_val",
    tf.bool: "bool_val",
    tf.string: "string_val",
}

MOST_FILLED = 2**16  # places that few values may stand for


def read_spec(name: str, proto: tensor_pb2.TensorProto) -> tf.TensorSpec:
    """What a tensor says that it is."""
    try:
        dtype = tf.dtypes.as_dtype(proto.dtype)
        FIELDS[dtype]
    except (TypeError, KeyError):
        raise invalid(
            f"inputs[{name!r}].dtype is {proto.dtype}, which has no meaning here."
        ) from None
    if proto.tensor_shape.unknown_rank:
        raise invalid(f"inputs[{name!r}].tensor_shape has an unknown rank; give its sizes.")
    shape = [dim.size for dim in proto.tensor_shape.dim]
    if any(size < 0 for size in shape):
        raise invalid(f"inputs[{name!r}].tensor_shape is {shape}; sizes cannot be negative.")
    if len(shape) > 32 or math.prod(size or 1 for size in shape) > 2**31:
        raise invalid(f"inputs[{name!r}].tensor_shape is {shorten(shape)}, which is too large.")
    return tf.TensorSpec(shape, dtype)


def to_array(name: str, proto: tensor_pb2.TensorProto) -> np.ndarray:
    """A tensor as an array, if its values are what it says of itself.

    They come as bytes in `tensor_content` or one by one in the field of their type. There may be
    fewer of the latter than the shape has places: the last one stands for the rest.
    """
    spec = read_spec(name, proto)
    dtype, shape, field = spec.dtype, spec.shape.as_list(), FIELDS[spec.dtype]
    size = math.prod(shape)
    values = getattr(proto, field)
    if proto.tensor_content:
        if dtype == tf.string:
            raise invalid(f"inputs[{name!r}]: give strings in string_val, not in tensor_content.")
        came, expected = len(proto.tensor_content), size * dtype.size
        if came != expected:
            raise invalid(
                f"inputs[{name!r}].tensor_content has {came} bytes; the shape {shape} of "
                f"{dtype.name} needs {expected}."
            )
        return np.frombuffer(proto.tensor_content, dtype.as_numpy_dtype).reshape(shape)
    # Few values may stand for many: not for so many that they fill the memory.
    if len(values) > size or (size and not values) or (len(values) < size > MOST_FILLED):
        raise invalid(
            f"inputs[{name!r}].{field} has {len(values)} values; the shape {shape} needs {size}."
        )
    if dtype in (tf.float16, tf.bfloat16):  # their bits, as numbers
        array = _as_type(name, field, values, np.uint16).view(dtype.as_numpy_dtype)
    elif dtype == tf.string:
        array = np.empty(len(values), object)
        array[:] = values
    else:
        array = _as_type(name, field, values, dtype.as_numpy_dtype)
    if len(values) < size:
        array = np.concatenate([array, np.repeat(array[-1:], size - len(values))])
    return array.reshape(shape)


def to_proto(array: np.ndarray) -> tensor_pb2.TensorProto:
    """An array as a tensor with typed values, as TensorFlow Serving fills it."""
    dtype = tf.dtypes.as_dtype(array.dtype) if array.dtype != object else tf.string
    proto = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum)
    proto.tensor_shape.SetInParent()
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    if dtype in (tf.float16, tf.bfloat16):
        array = array.view(np.uint16)
    getattr(proto, FIELDS[dtype]).extend(array.ravel().tolist())
    return proto


def _as_type(name, field, values, dtype):
    try:
        return np.array(values, dtype)
    except (OverflowError, ValueError):
        raise invalid(
            f"inputs[{name!r}].{field} is {shorten(list(values[:4]))}, "
            f"which is not all {np.dtype(dtype).name}."
        ) from None
