"""Which encoder layer each decoder layer looks at."""

import keras
from keras import ops

WIRINGS = ("last", "same", "mix")


@keras.saving.register_keras_serializable("keras_transformer")
class CrossWiring(keras.layers.Layer):
    """Gives each decoder layer its memory out of the outputs of all encoder layers.

    "last": the last encoder layer for every decoder layer, as in Vaswani et al. 2017.
    "same": the encoder layer of the same height. Where the depths differ, heights are stretched so
    that the last decoder layer still looks at the last encoder layer.
    "mix": a softmax-weighted mean of all encoder layers, with weights learned for each decoder
    layer (Bapna et al. 2018, "Training Deeper Neural Machine Translation Models with Transparent
    Attention"; that paper also mixes in the embeddings). All weights are equal at first.

    Args:
        decoder_layers: the number of decoder layers.
        wiring: "last", "same" or "mix".

    Call arguments:
        outputs: a list of [B, S, D], first encoder layer first.

    Returns:
        A list of [B, S, D], one for each decoder layer.

    Example:

    >>> import keras
    >>> from keras_transformer import CrossWiring
    >>> outputs = [keras.ops.full((1, 1, 1), float(height)) for height in (1, 2, 3, 4)]
    >>> def heights(wiring):
    ...     memories = CrossWiring(decoder_layers=2, wiring=wiring)(outputs)
    ...     return [float(memory[0, 0, 0]) for memory in memories]
    >>> heights("last"), heights("same"), heights("mix")
    ([4.0, 4.0], [2.0, 4.0], [2.5, 2.5])
    """

    def __init__(self, decoder_layers, wiring="last", **kwargs):
        super().__init__(**kwargs)
        if wiring not in WIRINGS:
            raise ValueError(f"wiring={wiring!r} is not one of {', '.join(map(repr, WIRINGS))}.")
        self.decoder_layers = decoder_layers
        self.wiring = wiring

    def build(self, outputs_shape):
        if self.wiring == "mix":
            self.logits = self.add_weight(
                shape=(self.decoder_layers, len(outputs_shape)), initializer="zeros", name="logits"
            )

    def call(self, outputs):
        if self.wiring == "last":
            return [outputs[-1]] * self.decoder_layers
        if self.wiring == "same":
            stretch = len(outputs) / self.decoder_layers
            heights = [round((height + 1) * stretch) for height in range(self.decoder_layers)]
            return [outputs[max(height, 1) - 1] for height in heights]
        # [decoder layers, encoder layers], in float32 like every softmax
        weights = ops.softmax(ops.cast(self.logits, "float32"), axis=-1)
        outputs = ops.stack(outputs)
        mixed = ops.einsum("ij,jbsd->ibsd", ops.cast(weights, outputs.dtype), outputs)
        return [mixed[layer] for layer in range(self.decoder_layers)]
