"""Feature maps of linear attention: phi(q)'phi(k) instead of exp(q'k / sqrt(K))."""

import keras
from keras import ops

from keras_transformer.attention.scores import to_unit_length


class FeatureMap(keras.layers.Layer):
    """A map of queries and keys [B, H, T, K] to features [B, H, T, F], in float32.

    Args:
        num_heads: H.
        head_dim: K.
    """

    def __init__(self, num_heads, head_dim, **kwargs):
        super().__init__(dtype="float32", **kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim

    @property
    def num_features(self):
        """F."""
        return self.head_dim

    # What a sum of phi(q)'phi(k) is not taken to be smaller than.
    smallest = 1e-30

    def of_query(self, query):
        raise NotImplementedError

    def of_key(self, key, keep, causal):
        """Of keys [B, H, S, K]; those of padding, where keep [B, S] is False, do not matter."""
        return self.of_query(key)

    def redraw(self):
        """Draws what is random anew; called after each pass of training."""


class EluFeatures(FeatureMap):
    """phi(x) = elu(x) + 1."""

    def of_query(self, query):
        return ops.elu(ops.cast(query, "float32")) + 1.0


class RandomFeatures(FeatureMap):
    """Features of random projections x W, with W [H, K, features] drawn once, or now and then.

    Args:
        num_heads, head_dim: H, K.
        features: how many projections; with more, the approximation is better.
        redraw_every: W is drawn anew after so many passes of training; 0 for never.
    """

    def __init__(self, num_heads, head_dim, features, redraw_every=0, **kwargs):
        super().__init__(num_heads, head_dim, **kwargs)
        self.features = features
        self.redraw_every = redraw_every
        self.seed_generator = keras.random.SeedGenerator()

    def build(self, input_shape=None):
        self.projection = self.add_weight(
            shape=(self.num_heads, self.head_dim, self.features),
            initializer=lambda shape, dtype=None: self.draw(),
            trainable=False,
            autocast=False,
            name="projection",
        )
        self.passes = self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, name="passes"
        )

    def draw(self):
        """A new W."""
        return self.form(*self.normals())

    def normals(self):
        """The normal numbers that a W is made of, a tuple."""
        shape = (self.num_heads, self.head_dim, self.features)
        return (keras.random.normal(shape, seed=self.seed_generator),)

    def form(self, projection):
        """W of these numbers."""
        return projection

    def redraw(self):
        if self.redraw_every:
            passes = ops.convert_to_tensor(self.passes) + 1
            before = ops.convert_to_tensor(self.projection)
            self.passes.assign(passes)
            # The numbers are cheap, and JAX has no seed that moves on in one branch only; what is
            # made of them, such as a QR decomposition, is computed where it is needed.
            normals = self.normals()
            self.projection.assign(
                ops.cond(
                    passes % self.redraw_every == 0, lambda: self.form(*normals), lambda: before
                )
            )

    def project(self, x):
        """x W, [B, H, T, features]."""
        return ops.einsum("bhtk,hkf->bhtf", x, ops.convert_to_tensor(self.projection))


class TrigonometricFeatures(RandomFeatures):
    """phi(x) = [sin w'(sigma * x), cos w'(sigma * x)] / sqrt(features), of x at unit length.

    For w from a normal distribution, E phi(x)'phi(y) = exp(-|sigma * (x - y)|^2 / 2) (Rahimi and
    Recht 2007). The scale sigma of each component is learned for each head, and begins at 1 (Peng
    et al. 2021, who write it as w = sigma * w~). Where sigma is the same for all components this is
    exp((sigma x)'(sigma y)) times the constant exp(-sigma^2), which a quotient does not see.
    """

    # Noise may bring a sum of sines near to zero, or below. Of unit vectors, with sigma = 1, what
    # it estimates is at least exp(-2) = 0.14 for each key: what is far below that is noise alone.
    smallest = 1e-2

    def build(self, input_shape=None):
        super().build(input_shape)
        self.sigma = self.add_weight(
            shape=(self.num_heads, self.head_dim), initializer="ones", autocast=False, name="sigma"
        )

    @property
    def num_features(self):
        return 2 * self.features

    def of_query(self, query):
        sigma = ops.convert_to_tensor(self.sigma)[:, None]  # [H, 1, K]
        turned = self.project(sigma * to_unit_length(query))
        return ops.concatenate([ops.sin(turned), ops.cos(turned)], -1) * self.features**-0.5


class PositiveFeatures(RandomFeatures):
    """phi(x) = exp(w'x - |x|^2 / 2) / sqrt(features), of x / K^(1/4): FAVOR+.

    E phi(x)'phi(y) = exp(x'y) for w from a normal distribution (Choromanski et al. 2021, lemma 1),
    without the negative values of sines. The w of a block of K are orthogonal, each with the length
    of a vector of its own, which lessens the variance.

    In float32, exp(-|x|^2 / 2) is lost for keys whose components are of the order of 5 and more (of
    K = 64): if causal, they are not seen, while else the largest of all keys is taken off first.
    """

    @property
    def num_features(self):
        return self.features

    def normals(self):
        blocks = -(-self.features // self.head_dim)
        shape = (self.num_heads, blocks, self.head_dim, self.head_dim)
        return tuple(keras.random.normal(shape, seed=self.seed_generator) for _ in range(2))

    def form(self, directions, lengths):
        turned, triangle = ops.qr(directions)
        # Whose diagonal has to be positive for the rotation to be uniform (Mezzadri 2007).
        turned = turned * ops.sign(ops.diagonal(triangle, axis1=-2, axis2=-1))[..., None, :]
        rows = turned * ops.norm(lengths, axis=-1)[..., None]  # [H, blocks, K, K], orthogonal rows
        rows = ops.reshape(rows, (self.num_heads, -1, self.head_dim))[:, : self.features]
        return ops.transpose(rows, (0, 2, 1))

    def of_query(self, query):
        exponent = self._exponent(query)
        # A factor of all features of a query has no effect, and keeps the exponential in range.
        largest = ops.max(exponent, axis=-1, keepdims=True, initial=-1e9)
        return ops.exp(exponent - ops.stop_gradient(largest))

    def of_key(self, key, keep, causal):
        exponent = self._exponent(key)
        if not causal:  # nor has a factor of all keys; if causal, the largest is not known yet
            if keep is not None:
                exponent = ops.where(keep[:, None, :, None], exponent, -1e9)
            largest = ops.max(exponent, axis=(2, 3), keepdims=True, initial=-1e9)
            exponent = exponent - ops.stop_gradient(largest)
        return ops.exp(exponent) * self.features**-0.5

    def _exponent(self, x):
        x = ops.cast(x, "float32") * self.head_dim**-0.25
        return self.project(x) - ops.sum(ops.square(x), axis=-1, keepdims=True) / 2
