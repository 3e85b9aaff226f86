"""NumPy arrays as tensors of TensorFlow's protocol, and back."""

import numpy as np

from keras_transformer_client import protos

STRING = 7
# number of the type: NumPy's name, the field of the message that holds its values
TYPES = {
    1: ("float32", "float_val"),
    2: ("float64", "double_val"),
    3: ("int32", "int_val"),
    4: ("uint8", "int_val"),
    5: ("int16", "int_val"),
    6: ("int8", "int_val"),
    STRING: ("object", "string_val"),
    9: ("int64", "int64_val"),
    10: ("bool", "bool_val"),
    17: ("uint16", "int_val"),
    19: ("float16", "half_val"),
    22: ("uint32", "uint32_val"),
    23: ("uint64", "uint64_val"),
}
NUMBERS = {name: number for number, (name, _) in TYPES.items()}


def to_tensor(value):
    """An array, number, text, or nested list of those, as a message."""
    array, is_text = value, False
    if not isinstance(value, np.ndarray) or value.dtype.kind in "USO":
        array = np.array(value, object)  # NumPy's own arrays of text lose zeros at the end
        is_text = any(isinstance(one, str | bytes) for one in array.flat) or not array.size
    if not is_text:
        array = np.asarray(value)
    name = "object" if is_text else array.dtype.name
    if name not in NUMBERS:
        raise ValueError(f"Arrays of {name} cannot be sent; convert it to {', '.join(NUMBERS)}.")
    tensor = protos.Tensor(dtype=NUMBERS[name])
    tensor.tensor_shape.SetInParent()  # the shape of a scalar has no fields, but is there
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    if is_text:
        tensor.string_val.extend(_to_bytes(one) for one in array.ravel())
    else:
        tensor.tensor_content = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return tensor


def to_array(tensor) -> np.ndarray:
    """A message as an array; strings as bytes, in an array of objects."""
    if tensor.dtype not in TYPES:
        raise ValueError(f"Tensors of the type number {tensor.dtype} are not understood.")
    name, field = TYPES[tensor.dtype]
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_content:
        little = np.dtype(name).newbyteorder("<")
        return np.frombuffer(tensor.tensor_content, little).astype(name).reshape(shape)
    values = getattr(tensor, field)
    if name == "float16":  # its bits, as numbers
        array = np.array(values, "uint16").view("float16")
    elif name == "object":
        array = np.empty(len(values), object)
        array[:] = values
    else:
        array = np.array(values, name)
    size = int(np.prod(shape))
    if 0 < len(array) < size:  # the last one stands for all that are left out
        array = np.concatenate([array, np.repeat(array[-1:], size - len(array))])
    return array.reshape(shape)


def _to_bytes(value) -> bytes:
    if not isinstance(value, str | bytes):
        raise ValueError(f"{value!r} cannot be sent; expected text, bytes or numbers.")
    return value if isinstance(value, bytes) else value.encode("utf-8")
