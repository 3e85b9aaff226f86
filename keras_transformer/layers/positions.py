"""Where a token stands: sinusoids, learned vectors, rotations."""

import keras
from keras import ops

from keras_transformer import masks


def angles(positions, size, max_wavelength=10_000.0):
    """positions / max_wavelength^(2i / size) for i = 0 ... size/2 - 1, float32 [T, size/2].

    Wavelengths form a geometric progression from 2 pi to 2 pi max_wavelength.
    """
    frequencies = max_wavelength ** (-ops.arange(0, size, 2, dtype="float32") / size)
    return ops.cast(positions, "float32")[:, None] * frequencies[None, :]


@keras.saving.register_keras_serializable("keras_transformer")
class SinusoidalPositions(keras.layers.Layer):
    """Adds the paper's position encodings (Vaswani et al. 2017, section 3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model)).
    For any fixed shift, PE(pos + shift) is a linear map of PE(pos). There is no longest sequence.

    Args:
        max_wavelength: the paper's 10000, in units of 2 pi.

    Call arguments:
        x: [B, T, D], D even.
        offset: int or int tensor, the position of the first place.

    Returns:
        [B, T, D].

    Example:

    >>> import keras
    >>> from keras_transformer import SinusoidalPositions
    >>> encoding = SinusoidalPositions()(keras.ops.zeros((1, 50, 128)))
    >>> [round(float(value), 3) for value in encoding[0, 1, :2]]  # sin(1), cos(1)
    [0.841, 0.54]
    """

    def __init__(self, max_wavelength=10_000.0, **kwargs):
        super().__init__(**kwargs)
        self.max_wavelength = max_wavelength

    def call(self, x, offset=0):
        length, d_model = ops.shape(x)[1], x.shape[-1]
        angle = angles(masks.positions(length, offset), d_model, self.max_wavelength)
        encoding = ops.stack([ops.sin(angle), ops.cos(angle)], axis=-1)  # [T, D/2, 2]
        return x + ops.cast(ops.reshape(encoding, (length, d_model)), x.dtype)


@keras.saving.register_keras_serializable("keras_transformer")
class LearnedPositions(keras.layers.Layer):
    """Adds a learned vector for each position (Gehring et al. 2017), up to `max_length`.

    Args:
        max_length: the number of positions that have a vector; longer sequences fail.

    Call arguments:
        x: [B, T, D].
        offset: int or int tensor, the position of the first place.

    Returns:
        [B, T, D].

    Example:

    >>> import keras
    >>> from keras_transformer import LearnedPositions
    >>> tuple(LearnedPositions(max_length=16)(keras.ops.zeros((2, 7, 8))).shape)
    (2, 7, 8)
    """

    def __init__(self, max_length, **kwargs):
        super().__init__(**kwargs)
        self.max_length = max_length

    def build(self, x_shape):
        # As fairseq does: small beside the scaled token embeddings, which have unit variance.
        initializer = keras.initializers.RandomNormal(stddev=x_shape[-1] ** -0.5)
        self.positions = self.add_weight(
            shape=(self.max_length, x_shape[-1]), initializer=initializer, name="positions"
        )

    def call(self, x, offset=0):
        length = x.shape[1]  # None or a symbol while the model is being made
        if isinstance(length, int) and length > self.max_length:
            raise ValueError(
                f"A sequence of {length} places came, but only max_length={self.max_length} "
                "positions were learned. Shorten the sequence or use sinusoidal positions."
            )
        here = masks.positions(ops.shape(x)[1], offset)
        return x + ops.cast(ops.take(self.positions, here, axis=0), x.dtype)


@keras.saving.register_keras_serializable("keras_transformer")
class RotaryPositions(keras.layers.Layer):
    """Rotates queries or keys by their positions (Su et al. 2021, "RoFormer").

    Components i and i + K/2 form a plane that turns by pos / max_wavelength^(2i/K), so that the dot
    product of a query and a key depends on the distance between them alone. (The paper pairs
    neighbours 2i and 2i+1; which components are paired is a matter of naming, and halves need no
    interleaving.)

    Args:
        max_wavelength: the longest wavelength, in units of 2 pi.

    Call arguments:
        x: [B, H, T, K], K even.
        offset: int or int tensor, the position of the first place.

    Returns:
        [B, H, T, K].

    Example:

    >>> import keras
    >>> from keras_transformer import RotaryPositions
    >>> tuple(RotaryPositions()(keras.random.normal((2, 4, 7, 16))).shape)
    (2, 4, 7, 16)
    """

    def __init__(self, max_wavelength=10_000.0, **kwargs):
        super().__init__(**kwargs)
        self.max_wavelength = max_wavelength

    def call(self, x, offset=0):
        here = masks.positions(ops.shape(x)[2], offset)
        angle = angles(here, x.shape[-1], self.max_wavelength)  # [T, K/2]
        sine, cosine = ops.cast(ops.sin(angle), x.dtype), ops.cast(ops.cos(angle), x.dtype)
        first, second = ops.split(x, 2, axis=-1)  # [B, H, T, K/2] each
        return ops.concatenate(
            [first * cosine - second * sine, second * cosine + first * sine], axis=-1
        )
