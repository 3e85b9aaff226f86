import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from tests import oracle

V = 40
SMALL = dict(
    vocabulary_size=V, d_model=16, d_ff=32, num_heads=2, encoder_layers=2, decoder_layers=2
)
VARIANTS = {
    "paper": {},
    "pre-norm, rotary, gated": dict(norm="pre", positions="rotary", activation="silu", gated=True),
    "learned positions, mixed memory": dict(positions="learned", cross_attention="mix", norm="pre"),
    "same height, deep encoder": dict(cross_attention="same", encoder_layers=3, decoder_layers=1),
    "layers and heads that differ": dict(
        encoder_heads="local(window=4) + linear; dot",
        decoder_heads="local(window=4); aft + dot",
        cross_heads="dot; monotonic + linear",
    ),
    "two vocabularies, untied": dict(target_vocabulary_size=30, tie_output=False),
}
every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


def make(**fields):
    return kt.Transformer(kt.ModelConfig(**{**SMALL, **fields}))


@pytest.fixture
def batch():
    generator = np.random.default_rng(1)
    source, target = generator.integers(4, 30, (2, 7)), generator.integers(4, 30, (2, 5))
    source[1, 4:] = 0
    return {"source": source.astype("int32"), "target": target.astype("int32")}


@pytest.mark.parametrize(("preset", "millions"), [("base", 63), ("big", 214)])
def test_sizes_are_the_papers(preset, millions):
    model = kt.Transformer(kt.ModelConfig.preset(preset, vocabulary_size=37_000))
    assert round(model.count_params() / 1e6) == millions


def test_heads_that_cannot_do_what_the_model_needs_are_refused():
    with pytest.raises(ValueError, match="look at 8 places, but the model has max_length=256"):
        make(encoder_heads="linformer(max_length=8)")
    with pytest.raises(ValueError, match=r"copy_words needs .* probabilities"):
        make(cross_heads="rfa", copy_words=2)


@every_variant
def test_step_by_step_equals_the_whole(variant, batch):
    model = make(**variant)
    whole = oracle.array(model(batch))
    memory = model.encode(batch["source"])
    state = model.start(2, 8, memory)
    for index in range(5):
        logits, state = model.step(batch["target"][:, index], state, memory, index=index)
        np.testing.assert_allclose(oracle.array(logits), whole[:, index], atol=1e-5)


@every_variant
def test_saved_and_loaded_it_gives_the_same(variant, batch, tmp_path):
    model = make(**variant)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.config == model.config
    np.testing.assert_array_equal(oracle.array(loaded(batch)), oracle.array(model(batch)))


@every_variant
def test_padding_changes_nothing(variant, batch):
    model = make(**variant)
    whole = oracle.array(model(batch))
    alone = {"source": batch["source"][1:, :4], "target": batch["target"][1:, :3]}
    np.testing.assert_allclose(oracle.array(model(alone))[0], whole[1, :3], atol=1e-5)
    padded = dict(batch, target=np.pad(batch["target"], ((0, 0), (0, 3))))
    np.testing.assert_allclose(oracle.array(model(padded))[:, :5], whole, atol=1e-5)


@every_variant
def test_the_future_of_the_target_is_not_seen(variant, batch):
    model = make(**variant)
    before = oracle.array(model(batch))
    batch["target"][:, 3] += 1
    after = oracle.array(model(batch))
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6)
    assert np.abs(after[:, 3] - before[:, 3]).max() > 1e-3


def test_it_is_a_functional_model_whose_parts_can_be_taken_and_saved(tmp_path):
    model = make()
    assert set(model.input) == {"source", "target"}
    assert model.get_layer("decoder") is model.decoder
    inner = keras.Model(model.input, model.get_layer("encoder").output[-1])
    ids = np.ones((1, 3), "int32")
    vectors = inner({"source": ids, "target": ids})
    assert tuple(vectors.shape) == (1, 3, 16)
    inner.save(tmp_path / "inner.keras")
    loaded = keras.saving.load_model(tmp_path / "inner.keras")
    again = loaded({"source": ids, "target": ids})
    np.testing.assert_array_equal(oracle.array(again), oracle.array(vectors))


def test_source_target_and_output_share_one_table():
    shared, apart = make(), make(target_vocabulary_size=V)
    assert apart.count_params() - shared.count_params() == V * 16
    assert make(tie_output=False).count_params() - shared.count_params() == V * 16


def test_attention_scores_are_those_of_every_layer_and_head(batch):
    scores = make(encoder_layers=3).attention_scores(batch["source"], batch["target"])
    shapes = {name: [tuple(layer.shape) for layer in layers] for name, layers in scores.items()}
    assert shapes == {
        "encoder": [(2, 2, 7, 7)] * 3,
        "decoder": [(2, 2, 5, 5)] * 2,
        "cross": [(2, 2, 5, 7)] * 2,
    }
    for layer in scores["cross"]:
        np.testing.assert_allclose(oracle.array(layer).sum(-1), 1, atol=1e-5)
        np.testing.assert_array_equal(oracle.array(layer)[1, :, :, 4:], 0)


def test_mixed_precision_is_saved_with_the_model(batch, tmp_path):
    model = kt.Transformer(kt.ModelConfig(**SMALL), dtype="mixed_bfloat16")
    assert keras.backend.standardize_dtype(model(batch).dtype) == "bfloat16"
    assert all(weight.dtype == "float32" for weight in model.weights)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert keras.backend.standardize_dtype(loaded(batch).dtype) == "bfloat16"
    memory = loaded.encode(batch["source"])
    state = loaded.start(2, 5, memory)
    logits, _ = loaded.step(batch["target"][:, 0], state, memory, index=0)
    np.testing.assert_allclose(
        oracle.array(ops.cast(logits, "float32")),
        oracle.array(ops.cast(loaded(batch)[:, 0], "float32")),
        atol=0.05,
    )


def test_fit_learns_to_copy_and_a_loaded_model_goes_on_learning(tmp_path):
    generator = np.random.default_rng(1)
    words = generator.integers(4, 12, (512, 4)).astype("int32")
    inputs = {"source": words, "target": np.pad(words, ((0, 0), (1, 0)), constant_values=1)[:, :4]}
    model = make(dropout=0.0, norm="pre", d_model=32)
    model.compile(
        optimizer=keras.optimizers.Adam(kt.WarmupSchedule(1e-2, 40), beta_2=0.98, clipnorm=1.0),
        loss=kt.LabelSmoothedCrossEntropy(0.1),
        metrics=[kt.TokenAccuracy(), kt.Perplexity()],
    )
    model.fit(inputs, words, batch_size=64, epochs=20, verbose=0)
    result = model.evaluate(inputs, words, return_dict=True, verbose=0)
    assert result["accuracy"] > 0.95
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    again = loaded.evaluate(inputs, words, return_dict=True, verbose=0)
    assert again == pytest.approx(result, abs=1e-5)
    loaded.fit(inputs, words, batch_size=64, verbose=0)
    assert int(loaded.optimizer.iterations) == 21 * 8


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        kt.ModelConfig(**SMALL).d_model = 8
