import math

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from tests import oracle

KEEP = np.array([[True] * 5, [True] * 3 + [False] * 2])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_an_encoder_layer_equals_the_formulas(norm, normal):
    layer = kt.EncoderLayer(d_model=8, d_ff=16, num_heads=2, norm=norm)
    x = normal(2, 5, 8)
    output = oracle.array(layer(x, keep=KEEP))
    for b in range(2):
        expected = oracle.encoder_layer(x[b], layer, 2, lambda s, b=b: KEEP[b, s])
        np.testing.assert_allclose(output[b], expected, atol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_decoder_layer_equals_the_formulas(norm, normal):
    layer = kt.DecoderLayer(d_model=8, d_ff=16, num_heads=2, norm=norm)
    x, memory = normal(2, 4, 8), normal(2, 5, 8)
    output = oracle.array(layer(x, memory, memory_keep=KEEP))
    for b in range(2):
        expected = oracle.decoder_layer(x[b], memory[b], layer, 2, lambda s, b=b: KEEP[b, s])
        np.testing.assert_allclose(output[b], expected, atol=1e-5)


def test_sinusoidal_positions_are_the_papers():
    encoding = oracle.array(kt.SinusoidalPositions()(np.zeros((1, 50, 128), "float32")))[0]
    for position in range(50):
        np.testing.assert_allclose(
            encoding[position], oracle.position_encoding(position, 128), atol=1e-5
        )


def test_a_shift_of_sinusoidal_positions_is_a_linear_map():
    encoding = oracle.array(kt.SinusoidalPositions()(np.zeros((1, 60, 16), "float32")))[0]
    here, shifted = encoding[:50], encoding[7:57]
    linear_map, *_ = np.linalg.lstsq(here, shifted, rcond=None)
    np.testing.assert_allclose(here @ linear_map, shifted, atol=1e-4)


@pytest.mark.parametrize(
    "layer", [kt.SinusoidalPositions(), kt.LearnedPositions(max_length=9)], ids=lambda x: x.name
)
def test_an_offset_continues_where_the_last_place_stood(layer, normal):
    x = normal(1, 6, 8)
    whole = oracle.array(layer(x))
    np.testing.assert_allclose(oracle.array(layer(x[:, 4:], offset=4)), whole[:, 4:], atol=1e-6)


def test_learned_positions_refuse_what_they_have_not_learned(normal):
    with pytest.raises(ValueError, match="max_length=4"):
        kt.LearnedPositions(max_length=4)(normal(1, 5, 8))


def test_rotated_dot_products_depend_on_the_distance_alone(normal):
    query, key, rotary = normal(1, 1, 1, 8), normal(1, 1, 1, 8), kt.RotaryPositions()

    def product(query_position, key_position):
        rotated = rotary(query, offset=query_position), rotary(key, offset=key_position)
        return float(ops.sum(rotated[0] * rotated[1]))

    assert math.isclose(product(2, 5), product(102, 105), abs_tol=1e-4)
    assert not math.isclose(product(2, 5), product(2, 6), abs_tol=1e-2)


def test_rotations_turn_each_plane_by_its_own_angle():
    x = np.zeros((1, 1, 1, 4), "float32")
    x[..., 0], x[..., 1] = 1, 1  # the first components of planes (0, 2) and (1, 3)
    rotated = oracle.array(kt.RotaryPositions()(x, offset=3))[0, 0, 0]
    angles = 3.0, 3.0 / 10000 ** (2 / 4)
    expected = [math.cos(angles[0]), math.cos(angles[1]), math.sin(angles[0]), math.sin(angles[1])]
    np.testing.assert_allclose(rotated, expected, atol=1e-6)


def test_an_embedding_that_is_read_often_is_updated_as_one_that_is_read_once():
    """Adam's first update is of the learning rate, whatever the gradient."""
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, kt.TokenEmbedding(input_dim=11, output_dim=16)(ids))
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    (before,) = model.get_weights()
    model.train_on_batch(np.array([[3, 3, 3, 3, 3, 4]]), np.ones((1, 6, 16), "float32"))
    (after,) = model.get_weights()
    np.testing.assert_allclose(np.abs(after - before)[3:5], 0.01, rtol=0.02)
    assert (after == before)[5:].all()


def test_embeddings_are_scaled_and_their_table_is_the_output_projection():
    embedding = kt.TokenEmbedding(input_dim=11, output_dim=16)
    vectors = oracle.array(embedding(np.array([[3, 4]])))
    table = oracle.array(embedding.embeddings)
    np.testing.assert_allclose(vectors[0], table[[3, 4]] * 4, atol=1e-6)
    x = np.ones((1, 2, 16), "float32")
    logits = oracle.array(embedding(x, reverse=True))
    np.testing.assert_allclose(logits[0], x[0] @ table.T, atol=1e-5)
    assert len(embedding.weights) == 1


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_feed_forward_equals_the_formula(activation, normal):
    layer, x = kt.FeedForward(8, 12, activation), normal(1, 3, 8)
    output = oracle.array(layer(x))[0]
    inner = x[0] @ oracle.array(layer.inner.kernel) + oracle.array(layer.inner.bias)
    if activation == "relu":
        inner = np.maximum(inner, 0)
    else:
        inner = np.vectorize(lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2))))(inner)
    expected = inner @ oracle.array(layer.outer.kernel) + oracle.array(layer.outer.bias)
    np.testing.assert_allclose(output, expected, atol=1e-4)


def test_a_gated_feed_forward_equals_the_formula(normal):
    layer, x = kt.FeedForward(8, 12, "sigmoid", gated=True), normal(1, 3, 8)
    output = oracle.array(layer(x))[0]
    joined = x[0] @ oracle.array(layer.inner.kernel) + oracle.array(layer.inner.bias)
    inner = 1 / (1 + np.exp(-joined[:, :12])) * joined[:, 12:]
    expected = inner @ oracle.array(layer.outer.kernel) + oracle.array(layer.outer.bias)
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_feed_forward_is_two_convolutions_of_width_one(normal):
    layer, x = kt.FeedForward(8, 12), normal(2, 5, 8)
    output = oracle.array(layer(x))
    first = keras.layers.Conv1D(12, 1, activation="relu")
    second = keras.layers.Conv1D(8, 1)
    first.build((None, None, 8)), second.build((None, None, 12))
    for conv, dense in ((first, layer.inner), (second, layer.outer)):
        conv.set_weights([dense.get_weights()[0][None], dense.get_weights()[1]])
    np.testing.assert_allclose(output, oracle.array(second(first(x))), atol=1e-5)


def test_a_residual_drops_out_the_sublayer_but_not_the_input():
    ones = np.ones((1, 1000, 4), "float32")
    identity = keras.layers.Identity()
    block = kt.Residual(identity, norm="pre", dropout=0.25)
    block.layer_norm.trainable = False
    x = ones * np.array([1.0, -1.0, 1.0, -1.0], "float32")  # its own layer norm
    output = np.abs(oracle.array(block(x, training=True)))
    kept = output > 1.5
    assert 0.7 < kept.mean() < 0.8
    np.testing.assert_allclose(output[~kept], 1, atol=1e-3)
    np.testing.assert_allclose(output[kept], 1 + 1 / 0.75, atol=1e-3)


def test_an_unknown_norm_or_wiring_is_refused():
    with pytest.raises(ValueError, match="norm='middle' is not one of 'post', 'pre'"):
        kt.Residual(keras.layers.Identity(), norm="middle")
    with pytest.raises(ValueError, match="wiring='all' is not one of"):
        kt.CrossWiring(2, "all")


@pytest.mark.parametrize(
    ("encoder", "decoder", "heights"),
    [
        (4, 4, [1, 2, 3, 4]),
        (6, 2, [3, 6]),
        (2, 6, [1, 1, 1, 1, 2, 2]),
        (1, 3, [1, 1, 1]),
        (3, 2, [2, 3]),
    ],
)
def test_heights_are_stretched_where_depths_differ(encoder, decoder, heights):
    outputs = [np.full((1, 1, 1), height, "float32") for height in range(1, encoder + 1)]
    memories = kt.CrossWiring(decoder, "same")(outputs)
    assert [int(memory[0, 0, 0]) for memory in memories] == heights


def test_a_mix_is_learned_for_each_decoder_layer():
    wiring = kt.CrossWiring(2, "mix")
    outputs = [np.full((1, 1, 1), height, "float32") for height in (1, 2)]
    wiring(outputs)
    wiring.set_weights([np.array([[100.0, 0.0], [0.0, 0.0]], "float32")])
    np.testing.assert_allclose([float(m[0, 0, 0]) for m in wiring(outputs)], [1, 1.5], atol=1e-6)


def test_stacks_of_pre_norm_layers_end_with_a_norm_and_others_do_not(normal):
    def stack(norm):
        return kt.Encoder([kt.EncoderLayer(8, 16, 2, norm=norm) for _ in range(2)])

    assert stack("post").final_norm is None
    output = oracle.array(stack("pre")(normal(1, 5, 8) * 10))
    np.testing.assert_allclose(output.mean(-1), 0, atol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_any_layer_can_be_part_of_another_model_and_is_saved_with_it(norm, normal, tmp_path):
    """A tagger: an encoder over word vectors, a class for each word."""
    words = keras.Input((None, 8))
    keep = keras.Input((None,), dtype="bool")
    x = kt.SinusoidalPositions()(words)
    x = kt.Encoder([kt.EncoderLayer(8, 16, 2, norm=norm) for _ in range(2)])(x, keep=keep)
    x = kt.Residual(kt.FeedForward(8, 16), norm=norm)(x)
    x = kt.Decoder([kt.DecoderLayer(8, 16, 2, norm=norm)])(x, words, memory_keep=keep)
    model = keras.Model([words, keep], keras.layers.Dense(3)(x))
    model.save(tmp_path / "tagger.keras")
    loaded = keras.saving.load_model(tmp_path / "tagger.keras")
    inputs = [normal(2, 5, 8), KEEP]
    np.testing.assert_array_equal(oracle.array(loaded(inputs)), oracle.array(model(inputs)))


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (kt.SinusoidalPositions(dtype="mixed_bfloat16"), [(2, 5, 8)]),
        (kt.LearnedPositions(9, dtype="mixed_bfloat16"), [(2, 5, 8)]),
        (kt.FeedForward(8, 16, dtype="mixed_bfloat16"), [(2, 5, 8)]),
        (kt.EncoderLayer(8, 16, 2, rotary=True, dtype="mixed_bfloat16"), [(2, 5, 8)]),
        (kt.DecoderLayer(8, 16, 2, dtype="mixed_bfloat16"), [(2, 4, 8), (2, 5, 8)]),
        (kt.CrossAttention(8, 2, dtype="mixed_bfloat16"), [(2, 4, 8), (2, 5, 8)]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_mixed_precision_computes_in_bfloat16_with_float32_weights(layer, inputs, normal):
    output = layer(*[normal(*shape) for shape in inputs])
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    assert np.isfinite(oracle.array(ops.cast(output, "float32"))).all()
    assert all(weight.dtype == "float32" for weight in layer.weights)
