"""A stack of layers, saved and loaded as one."""

import keras

from keras_transformer.layers.residual import layer_norm


class Stack(keras.layers.Layer):
    """What encoder and decoder share: their layers, and the norm that pre-norm layers need."""

    def __init__(self, layers, **kwargs):
        super().__init__(**kwargs)
        if not layers:
            raise ValueError("A stack needs at least one layer.")
        self.layers = list(layers)
        # Pre-norm layers add to a sum that nothing has normalised yet.
        pre = self.layers[-1].norm == "pre"
        self.final_norm = layer_norm(self.dtype_policy, name="final_norm") if pre else None

    def _finish(self, x):
        return x if self.final_norm is None else self.final_norm(x)

    def _build_stack(self, x_shape, *memory_shapes):
        for height, layer in enumerate(self.layers):
            if not layer.built:  # a layer that was loaded on its own is
                layer.build(x_shape, *(shapes[height] for shapes in memory_shapes))
        if self.final_norm is not None:
            self.final_norm.build(x_shape)

    def get_config(self):
        layers = [keras.saving.serialize_keras_object(layer) for layer in self.layers]
        return {**super().get_config(), "layers": layers}

    @classmethod
    def from_config(cls, config):
        layers = [keras.saving.deserialize_keras_object(layer) for layer in config["layers"]]
        return cls(**{**config, "layers": layers})
