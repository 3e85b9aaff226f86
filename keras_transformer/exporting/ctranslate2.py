"""A trained model for CTranslate2, the C++ engine that translates without TensorFlow."""

from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_transformer.attention.multi_head import SelfAttention
from keras_transformer.attention.spec import parse_heads
from keras_transformer.config import ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.generation.translate import check_vocabulary
from keras_transformer.layers.decoder import DecoderLayer
from keras_transformer.layers.positions import LearnedPositions, SinusoidalPositions
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import BEGIN, END, UNKNOWN, Tokenizer

# The activations that both sides have, with CTranslate2's names. Keras's "gelu" is the exact one.
ACTIVATIONS = {
    keras.activations.relu: "RELU",
    keras.activations.gelu: "GELU",
    keras.activations.silu: "SWISH",
    keras.activations.tanh: "Tanh",
    keras.activations.sigmoid: "Sigmoid",
}
MOST_POSITIONS = 1024  # CTranslate2 cuts longer sources, unless it is told otherwise


def export_ctranslate2(model: Transformer, tokenizer: Tokenizer, path: str | Path) -> None:
    """Writes a directory that `ctranslate2.Translator` loads, and the tokenizer beside the model.

    CTranslate2 reads and writes pieces of text, not ids: those that sentencepiece makes with the
    file `tokenizer.model`. It begins and ends sentences by itself. The weights are float32;
    `Translator(path, compute_type="int8")` makes them smaller while it loads them. Learned
    positions are as many as they are: with those, give `translate_batch` the model's max_length as
    `max_input_length` and `max_decoding_length`.

    Args:
        model: a trained `Transformer`, all of whose heads are "dot".
        tokenizer: the one that it was trained with.
        path: the directory; made where it is not there.
    """
    try:
        from ctranslate2 import specs
    except ImportError:
        raise InputError(
            "The export needs the package ctranslate2, which is not installed. "
            "Run: pip install 'keras-transformer-seq2seq[ctranslate2]'"
        ) from None
    _check(model.config)
    check_vocabulary(model, tokenizer)
    spec = _make_spec(specs, model.config)
    _fill_vocabulary(spec, tokenizer)
    _fill_tables(spec, model)
    _fill_stack(spec.encoder, model.encoder, model.source_positions, model.config)
    _fill_stack(spec.decoder, model.decoder, model.target_positions, model.config)
    spec.config.layer_norm_epsilon = model.encoder.layers[0].feed_forward.layer_norm.epsilon
    spec.validate()
    spec.optimize()  # a table that is embedding and output projection is written once
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    spec.save(str(path))
    tokenizer.save(path / "tokenizer.model")


def _check(config: ModelConfig):
    """Refuses what CTranslate2 has no words for."""

    def all_dot(heads):
        groups = (
            group
            for layer in heads.split(";")
            for group in parse_heads(layer.strip(), config.num_heads)
        )
        return all(group.name == "dot" and not group.options for group in groups)

    activations = " or ".join(f'"{one.__name__}"' for one in ACTIVATIONS)
    wishes = [
        ("encoder_heads", '"dot"', all_dot(config.encoder_heads)),
        ("decoder_heads", '"dot"', all_dot(config.decoder_heads)),
        ("cross_heads", '"dot"', all_dot(config.cross_heads)),
        ("cross_attention", '"last"', config.cross_attention == "last"),
        ("activation", activations, keras.activations.get(config.activation) in ACTIVATIONS),
        ("target_vocabulary_size", "none of its own", config.target_vocabulary_size is None),
        ("copy_words", "0", config.copy_words == 0),
    ]
    for name, expected, holds in wishes:
        if not holds:
            raise InputError(
                f"CTranslate2 cannot run this model: model.{name} is {getattr(config, name)!r}; "
                f"expected {expected}. Export a SavedModel instead, or train another model."
            )


def _make_spec(specs, config: ModelConfig):
    options = dict(
        num_heads=config.num_heads,
        pre_norm=config.norm == "pre",
        activation=specs.Activation[ACTIVATIONS[keras.activations.get(config.activation)]],
        ffn_glu=config.gated,
        rotary_dim=0 if config.positions == "rotary" else None,  # 0 stands for all of a head
        rotary_interleave=False,
    )
    return specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.encoder_layers, **options),
        specs.TransformerDecoderSpec(config.decoder_layers, **options),
    )


def _fill_vocabulary(spec, tokenizer):
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.bos_token = spec.config.decoder_start_token = pieces[BEGIN]
    spec.config.eos_token = pieces[END]
    spec.config.unk_token = pieces[UNKNOWN]
    spec.config.add_source_eos = True


def _fill_tables(spec, model):
    spec.encoder.embeddings[0].weight = _array(model.source_embedding.embeddings)  # [V, D]
    spec.decoder.embeddings.weight = _array(model.target_embedding.embeddings)
    if model.output_projection is None:
        spec.decoder.projection.weight = spec.decoder.embeddings.weight
    else:
        _fill_linear(spec.decoder.projection, model.output_projection)


def _fill_stack(spec, stack, positions, config):
    _fill_positions(spec, positions, config)
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        _fill_attention(layer_spec.self_attention, layer.self_attention)
        if isinstance(layer, DecoderLayer):
            _fill_attention(layer_spec.attention, layer.cross_attention)
        _fill_feed_forward(layer_spec.ffn, layer.feed_forward)
    if stack.final_norm is not None:
        _fill_norm(spec.layer_norm, stack.final_norm)


def _fill_positions(spec, layer, config):
    if isinstance(layer, LearnedPositions):
        spec.position_encodings.encodings = _array(layer.positions)  # [max_length, D]
    elif isinstance(layer, SinusoidalPositions):
        # A table, as CTranslate2's own sinusoids begin at 1 and have all sines before all cosines.
        nothing = ops.zeros((1, max(config.max_length, MOST_POSITIONS), config.d_model))
        table = SinusoidalPositions(layer.max_wavelength, dtype="float32")(nothing)
        spec.position_encodings.encodings = _array(table[0])


def _fill_attention(spec, residual):
    layer = residual.layer
    if isinstance(layer, SelfAttention):
        projections = [layer.query_key_value, layer.output_projection]
    else:
        projections = [layer.query, layer.key_value, layer.output_projection]
    _fill_norm(spec.layer_norm, residual.layer_norm)
    for linear, projection in zip(spec.linear, projections, strict=True):
        _fill_linear(linear, projection)


def _fill_feed_forward(spec, residual):
    layer = residual.layer
    _fill_norm(spec.layer_norm, residual.layer_norm)
    _fill_linear(spec.linear_1, layer.outer)
    if not layer.gated:
        _fill_linear(spec.linear_0, layer.inner)
        return
    # One kernel [D, 2 F] here, two of [F, D] there; the activation is on the first.
    weights = np.split(_array(layer.inner.kernel).T, 2)
    biases = np.split(_array(layer.inner.bias), 2)
    spec.linear_0.weight, spec.linear_0_noact.weight = weights
    spec.linear_0.bias, spec.linear_0_noact.bias = biases


def _fill_linear(spec, dense):
    spec.weight = _array(dense.kernel).T  # [in, out] -> [out, in]
    if dense.bias is not None:
        spec.bias = _array(dense.bias)


def _fill_norm(spec, norm):
    spec.gamma = _array(norm.gamma)
    spec.beta = _array(norm.beta)


def _array(variable):
    return ops.convert_to_numpy(ops.cast(variable, "float32"))
