"""The sizes and parts of a model."""

import dataclasses
from typing import Self

import keras

from keras_transformer.attention.spec import parse_heads, parse_layers
from keras_transformer.config.checks import FieldError, check, check_choice, check_reading
from keras_transformer.errors import InputError
from keras_transformer.layers.residual import NORMS
from keras_transformer.layers.wiring import WIRINGS

POSITIONS = ("sinusoidal", "learned", "rotary")

PRESETS = {
    # The published Transformer-tiny for Multi30k, and a size for a laptop.
    "tiny": dict(encoder_layers=4, decoder_layers=4, d_model=128, d_ff=256, num_heads=4),
    "small": dict(encoder_layers=3, decoder_layers=3, d_model=256, d_ff=1024, num_heads=8),
    # Table 3 of the paper.
    "base": dict(encoder_layers=6, decoder_layers=6, d_model=512, d_ff=2048, num_heads=8),
    "big": dict(
        encoder_layers=6, decoder_layers=6, d_model=1024, d_ff=4096, num_heads=16, dropout=0.3
    ),
}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The sizes and parts of a Transformer; by default the paper's base model.

    Args:
        vocabulary_size: V, of source and target together unless the next field is given.
        target_vocabulary_size: the target's own vocabulary, with an embedding table of its own.
        d_model: D, the size of embeddings and of every layer's output.
        d_ff: F, the inner size of the feed-forward networks.
        num_heads: H.
        encoder_layers, decoder_layers: the depths.
        encoder_heads, decoder_heads, cross_heads: what each attention head does, such as "dot" or
            "4 * dot + 4 * local(window=64)"; layers that differ are separated by semicolons, and
            repeat.
        cross_attention: the encoder layer that a decoder layer looks at: "last", the one of the
            "same" height, or a learned "mix" of all.
        positions: "sinusoidal", "learned" or "rotary".
        max_length: the longest sequence, in tokens, that learned positions and decoding allow.
        activation: of the feed-forward networks, by its Keras name.
        gated: whether that activation is a gate (GLU).
        norm: layer normalisation after ("post", the paper's) or before ("pre") each sublayer.
        dropout: on embeddings and sublayer outputs.
        attention_dropout: on attention weights.
        feed_forward_dropout: inside the feed-forward networks.
        tie_output: whether the target's embedding table is the output projection.
        copy_words: above 0, the model can copy tokens of the source (a pointer-generator), and so
            many words of it that the vocabulary does not know; see `Pointer`.

    Example:

    >>> from keras_transformer import ModelConfig
    >>> ModelConfig.preset("tiny", vocabulary_size=8_000, dropout=0.3).d_model
    128
    """

    vocabulary_size: int
    target_vocabulary_size: int | None = None
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_heads: str = "dot"
    decoder_heads: str = "dot"
    cross_heads: str = "dot"
    cross_attention: str = "last"
    positions: str = "sinusoidal"
    max_length: int = 256
    activation: str = "relu"
    gated: bool = False
    norm: str = "post"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    tie_output: bool = True
    copy_words: int = 0

    def __post_init__(self):
        for name in ("vocabulary_size", "d_model", "d_ff", "num_heads", "max_length"):
            check(self, name, "a positive number", lambda value: value > 0)
        for name in ("encoder_layers", "decoder_layers"):
            check(self, name, "at least 1", lambda value: value >= 1)
        for name in ("dropout", "attention_dropout", "feed_forward_dropout"):
            check(self, name, "at least 0 and below 1", lambda value: 0 <= value < 1)
        check(self, "copy_words", "at least 0", lambda value: value >= 0)
        if self.copy_words and self.target_vocabulary_size is not None:
            raise FieldError(
                self, "copy_words", ": copying needs one vocabulary for source and target."
            )
        check_choice(self, "cross_attention", WIRINGS)
        check_choice(self, "positions", POSITIONS)
        check_choice(self, "norm", NORMS)
        if self.d_model % (2 * self.num_heads):
            raise FieldError(
                self,
                "d_model",
                f" is {self.d_model}, which {self.num_heads} heads of an even size cannot share: "
                f"choose a multiple of {2 * self.num_heads}.",
            )
        depths = {
            "encoder_heads": self.encoder_layers,
            "decoder_heads": self.decoder_layers,
            "cross_heads": self.decoder_layers,
        }
        for name, depth in depths.items():
            check_reading(
                self,
                name,
                lambda spec, depth=depth: [
                    parse_heads(layer, self.num_heads) for layer in parse_layers(spec, depth)
                ],
            )
        check_reading(self, "activation", keras.activations.get)

    @classmethod
    def preset(cls, name: str, **fields) -> Self:
        """One of "tiny", "small", "base", "big", with any field set otherwise."""
        if name not in PRESETS:
            raise InputError(f"Unknown preset {name!r}: choose {', '.join(PRESETS)}.")
        return cls(**{**PRESETS[name], **fields})
