"""One contract for every attention mechanism, run over the table itself."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import CrossAttention, SelfAttention, masks
from keras_transformer.attention import MECHANISMS
from tests import oracle

B, T, S, D, H = 2, 6, 5, 16, 4
KEEP = np.array([[True] * T, [True] * (T - 2) + [False] * 2])
MEMORY_KEEP = np.array([[True] * S, [True] * (S - 2) + [False] * 2])

# What each mechanism computes for one head of one sentence, from its paper's formula:
# query [T, K], key and value [S, K], allowed(t, s) -> output [T, K].
ORACLES = {
    "dot": oracle.attention,
}

every_mechanism = pytest.mark.parametrize("name", MECHANISMS)
causal_mechanism = pytest.mark.parametrize(
    "name", [name for name, mechanism in MECHANISMS.items() if mechanism.can_be_causal]
)
cross_mechanism = pytest.mark.parametrize(
    "name", [name for name, mechanism in MECHANISMS.items() if mechanism.can_cross]
)


def self_attention(name, causal=False, **options):
    return SelfAttention(D, H, heads=name, causal=causal, **options)


def close(one, other, atol=1e-5):
    np.testing.assert_allclose(oracle.array(one), oracle.array(other), atol=atol)


def check_padding_changes_nothing(layer, x):
    """What stands in padded places, and how many there are, has no effect on the others."""
    output = layer(x, keep=KEEP)
    other = np.where(KEEP[:, :, None], x, 7.0)
    close(
        ops.where(KEEP[:, :, None], output, 0),
        ops.where(KEEP[:, :, None], layer(other, keep=KEEP), 0),
    )
    short = layer(x[1:, : T - 2], keep=KEEP[1:, : T - 2])
    close(output[1:, : T - 2], short)


def check_no_future_leaks(layer, x):
    """A change at place 3 leaves the places before it alone, and reaches place 3."""
    other = x.copy()
    other[:, 3:] += 1.0
    before, after = oracle.array(layer(x)), oracle.array(layer(other))
    np.testing.assert_allclose(before[:, :3], after[:, :3], atol=1e-6)
    assert np.abs(before[:, 3] - after[:, 3]).max() > 1e-3


@every_mechanism
def test_output_has_the_shape_of_the_input(name, normal):
    output = self_attention(name)(normal(B, T, D), keep=KEEP)
    assert tuple(output.shape) == (B, T, D)


@every_mechanism
def test_padding_changes_nothing(name, normal):
    check_padding_changes_nothing(self_attention(name), normal(B, T, D))


@causal_mechanism
def test_no_future_leaks(name, normal):
    check_no_future_leaks(self_attention(name, causal=True), normal(B, T, D))


@every_mechanism
def test_a_broken_padding_mask_is_noticed(name, normal, monkeypatch):
    visible = masks.visible
    monkeypatch.setattr(masks, "visible", lambda t, s, keep, *rest: visible(t, s, None, *rest))
    with pytest.raises(AssertionError):
        check_padding_changes_nothing(self_attention(name), normal(B, T, D))


@causal_mechanism
def test_a_broken_causal_mask_is_noticed(name, normal, monkeypatch):
    monkeypatch.setattr(masks, "visible", lambda *_, **__: None)
    with pytest.raises(AssertionError):
        check_no_future_leaks(self_attention(name, causal=True), normal(B, T, D))


@causal_mechanism
@pytest.mark.parametrize("rotary", [False, True])
def test_step_by_step_equals_the_whole(name, rotary, normal):
    layer, x = self_attention(name, causal=True, rotary=rotary), normal(B, T, D)
    whole = layer(x)
    state = layer.start(B, T + 3)  # with slots to spare
    for index in range(T):
        output, state = layer.step(x[:, index : index + 1], state, index=index)
        close(output[:, 0], whole[:, index])


@causal_mechanism
def test_state_is_a_tree_of_batch_first_tensors(name):
    state = self_attention(name, causal=True).start(3, 7)
    assert all(tensor.shape[0] == 3 for tensor in keras.tree.flatten(state))


@cross_mechanism
def test_what_is_remembered_once_can_be_recalled_place_by_place(name, normal):
    layer = CrossAttention(D, H, heads=name)
    x, memory = normal(B, T, D), normal(B, S, D)
    whole = layer(x, memory, keep=MEMORY_KEEP)
    remembered = layer.remember(memory)
    for index in range(T):
        output = layer.recall(x[:, index : index + 1], remembered, MEMORY_KEEP)
        close(output[:, 0], whole[:, index])


@every_mechanism
def test_config_round_trip(name, normal):
    layer, x = self_attention(name, causal=MECHANISMS[name].can_be_causal), normal(B, T, D)
    expected = layer(x)
    twin = SelfAttention.from_config(layer.get_config())
    twin(x)
    twin.set_weights(layer.get_weights())
    close(twin(x), expected, atol=0)


@every_mechanism
def test_saved_and_loaded(name, normal, tmp_path):
    x = keras.Input((None, D))
    model = keras.Model(x, self_attention(name)(x))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    sentence = normal(B, T, D)
    close(loaded(sentence), model(sentence), atol=0)


@every_mechanism
def test_mixed_precision_is_near_full_precision(name, normal):
    x = normal(B, T, D)
    full = self_attention(name)
    expected = full(x, keep=KEEP)
    mixed = self_attention(name, dtype="mixed_bfloat16")
    mixed(x)
    mixed.set_weights(full.get_weights())
    output = mixed(x, keep=KEEP)
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    close(ops.cast(output, "float32"), expected, atol=0.05)


@every_mechanism
def test_every_weight_has_a_finite_gradient_that_is_not_zero(name, normal):
    x = keras.Input((T, D))
    model = keras.Model(x, self_attention(name, causal=MECHANISMS[name].can_be_causal)(x))
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss="mse")
    before = model.get_weights()
    model.train_on_batch(normal(B, T, D), normal(B, T, D))
    assert before
    for was, now, weight in zip(before, model.get_weights(), model.weights, strict=True):
        change = np.abs(now - was)  # the gradient, with a learning rate of 1
        assert np.isfinite(now).all(), weight.path
        assert change.max() > 0, weight.path


@every_mechanism
@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_a_loop_written_from_the_formula(name, causal, normal):
    if causal and not MECHANISMS[name].can_be_causal:
        pytest.skip("not a causal mechanism")
    query, key, value = normal(B, H, T, 4), normal(B, H, T, 4), normal(B, H, T, 4)
    mechanism = MECHANISMS[name](num_heads=H, head_dim=4, causal=causal)
    output = oracle.array(mechanism(query, key, value, keep=KEEP))
    for b in range(B):
        for h in range(H):
            expected = ORACLES[name](
                query[b, h],
                key[b, h],
                value[b, h],
                lambda t, s, b=b: KEEP[b, s] and (s <= t or not causal),
            )
            np.testing.assert_allclose(output[b, h], expected, atol=1e-5)
