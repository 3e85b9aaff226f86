"""Mixing of places by a Fourier transform: FNet."""

import math

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention import blocks
from keras_transformer.attention.mechanism import Mechanism


@keras.saving.register_keras_serializable("keras_transformer")
class FourierMixing(Mechanism):
    """Re F_N(F_D(x)): Fourier transforms of components and places (Lee-Thorp et al. 2022, "FNet").

    No projections and no weights: the heads are a part of the input, which is transformed as it is.
    Both transforms are unitary (divided by sqrt(N) and sqrt(D)), for the output to be as large as
    the input; the paper's are not. That of the places has the length of the sentence without its
    padding, by Bluestein's algorithm: w^(st) = w^(s^2/2) w^(t^2/2) w^(-(t-s)^2/2) makes it a
    convolution, which a transform of any larger size computes for all lengths alike.

    Padding is taken to be at the end.

    The attention scores that it can return are cos(2 pi s t / N) / sqrt(N), the weights of the real
    part of the places' transform.

    Cost: O(N log N). Choose it in an encoder where speed is all.

    Args:
        num_heads, head_dim, causal, dropout: as of every mechanism; nothing is dropped.
    """

    can_be_causal = False
    can_cross = False
    projections = ()

    def call(self, query, key, value, keep=None, return_attention_scores=False):
        batch_size, _, length, _ = ops.shape(value)
        if keep is None:
            keep = ops.ones((batch_size, length), "bool")
        count = ops.maximum(ops.sum(ops.cast(keep, "int32"), axis=1, keepdims=True), 1)  # [B, 1]
        x = ops.where(keep[:, None, :, None], ops.cast(value, "float32"), 0.0)
        x = ops.reshape(ops.transpose(x, (0, 1, 3, 2)), (batch_size, -1, length))  # [B, H K, N]
        output = ops.reshape(self._transform(x, count), (batch_size, self.num_heads, -1, length))
        output = ops.cast(ops.transpose(output, (0, 1, 3, 2)), value.dtype)
        if not return_attention_scores:
            return output
        place = masks.positions(length)
        angle = _turns(place[:, None], place[None, :], count[:, :, None])  # [B, N, N]
        scores = ops.cos(angle) * ops.rsqrt(ops.cast(count, "float32"))[:, :, None]
        scores = ops.where(keep[:, None, :], scores, 0.0)[:, None]
        scores = ops.broadcast_to(scores, (batch_size, self.num_heads, length, length))
        return output, ops.cast(scores, value.dtype)

    def _transform(self, x, count):
        """x [B, D, N] -> the same, of sentences of `count` [B, 1] tokens."""
        width, length = self.num_heads * self.head_dim, ops.shape(x)[2]
        component = masks.positions(width)
        angle = _turns(component[:, None], component[None, :], width)  # [D, D]
        real = ops.einsum("bdn,de->ben", x, ops.cos(angle))
        imaginary = -ops.einsum("bdn,de->ben", x, ops.sin(angle))
        place = masks.positions(length)
        angle = _turns(place, place, 2 * count)[:, None, :]  # [B, 1, N], pi s^2 / count
        chirp = (ops.cos(angle), -ops.sin(angle))
        # Long enough that the ends of the convolution do not meet; powers of two are fast.
        size = _power_of_two(2 * length)
        around = (_around(chirp[0], size), _around(-chirp[1], size))
        signal = tuple(_fill(part, size) for part in _multiply((real, imaginary), chirp))
        mixed = _multiply(ops.fft(signal), ops.fft(around))
        real, imaginary = ops.fft((mixed[0], -mixed[1]))  # conjugated: the inverse, times size
        real, imaginary = (blocks.take(x, 0, length) for x in (real, imaginary))
        real, _ = _multiply((real, -imaginary), chirp)
        scale = ops.rsqrt(ops.cast(count * width, "float32")) / ops.cast(size, "float32")
        return real * scale[:, :, None]


def _turns(x, y, denominator):
    """2 pi x y / denominator, of whole numbers: whole turns are taken off exactly.

    In two parts, for x y of more than 46,340 places would be too large for int32.
    """
    high = (x // 256) * y % denominator * 256
    rest = (high + x % 256 * y) % denominator
    return 2 * math.pi * ops.cast(rest, "float32") / ops.cast(denominator, "float32")


def _power_of_two(number):
    """The smallest that is not less than a number."""
    if isinstance(number, int):
        return 1 << (number - 1).bit_length()
    if not ops.is_tensor(number):  # a symbol of JAX, while a model is made for any length
        return number
    power = ops.ceil(ops.log2(ops.cast(number, "float32")))
    return ops.cast(ops.power(2.0, power), "int32")


def _multiply(one, other):
    """The product of complex numbers, pairs of a real and an imaginary part."""
    return (
        one[0] * other[0] - one[1] * other[1],
        one[0] * other[1] + one[1] * other[0],
    )


def _fill(x, size):
    """x [..., N] with zeros up to `size`."""
    return ops.pad(x, [[0, 0], [0, 0], [0, size - ops.shape(x)[-1]]])


def _around(x, size):
    """x_0 ... x_{N-1}, zeros, x_{N-1} ... x_1: what x_{|m|} is for m = 0 ... -1, in a circle."""
    back = ops.flip(x[..., 1:], axis=-1)
    return ops.concatenate([_fill(x, size - ops.shape(back)[-1]), back], axis=-1)
