"""One contract for every attention mechanism, run over the table itself."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import CrossAttention, SelfAttention
from keras_transformer.attention import MECHANISMS
from keras_transformer.attention.spec import parse_heads
from tests import oracle
from tests.attention import formulas

B, T, S, D, H = 2, 11, 9, 16, 4
KEEP = np.array([[True] * T, [True] * (T - 3) + [False] * 3])
MEMORY_KEEP = np.array([[True] * S, [True] * (S - 2) + [False] * 2])


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch):
    """So that these short sequences have several of them."""
    monkeypatch.setattr("keras_transformer.attention.blocks.SMALLEST", 2)
    monkeypatch.setattr("keras_transformer.attention.linear.CHUNK", 4)


def instance(spec, num_heads=H, **options):
    (group,) = parse_heads(spec, num_heads)
    return MECHANISMS[group.name](num_heads, D // H, **group.options, **options)


# Groups of heads that differ, which only a whole layer can have.
MIXED = {
    "can_encode": ["2 * fourier + dot + sinkhorn(size=3)"],
    "can_be_causal": [
        "2 * dot + performer(features=8) + local(window=4)",
        "linear + lsh(window=4, buckets=4) + dot(bias='t5') + gmlp(max_length=16)",
    ],
    "can_cross": ["dot + monotonic + linear + linformer(rank=4, max_length=16)"],
}
MIXED["can_encode"] += MIXED["can_be_causal"]
ALL = [*formulas.SPECS, *MIXED["can_encode"], *MIXED["can_cross"]]


def usable(use):
    """The specs that may be used in a way."""
    specs = [spec for spec in formulas.SPECS if getattr(instance(spec), use)]
    return pytest.mark.parametrize("spec", specs + MIXED[use])


encoding, causal, crossing = map(usable, ("can_encode", "can_be_causal", "can_cross"))


def self_attention(spec, causal=False, **options):
    return SelfAttention(D, H, heads=spec, causal=causal, **options)


def may_be_rotated(spec):
    mechanisms = self_attention(spec).mechanisms
    return all(each.compares_by_dot_product or not each.projections for each in mechanisms)


def close(one, other, atol=1e-5):
    # Relatively as well: the quotients of `rfa`, whose sums may be near zero, are large.
    np.testing.assert_allclose(oracle.array(one), oracle.array(other), rtol=1e-5, atol=atol)


def test_every_mechanism_is_under_contract():
    assert {parse_heads(spec, H)[0].name for spec in formulas.SPECS} == set(MECHANISMS)


@encoding
def test_output_has_the_shape_of_the_input(spec, normal):
    output = self_attention(spec)(normal(B, T, D), keep=KEEP)
    assert tuple(output.shape) == (B, T, D)


@encoding
def test_padding_changes_nothing(spec, normal):
    """What stands in padded places, and how many there are, has no effect on the others."""
    layer, x = self_attention(spec), normal(B, T, D)
    output, seen = layer(x, keep=KEEP), KEEP[:, :, None]
    other = layer(np.where(seen, x, 7.0), keep=KEEP)
    close(ops.where(seen, output, 0), ops.where(seen, other, 0))
    close(output[1:, : T - 3], layer(x[1:, : T - 3], keep=KEEP[1:, : T - 3]))
    # And a mask is not ignored.
    everything = oracle.array(layer(x))[1, : T - 3]
    assert np.abs(everything - oracle.array(output)[1, : T - 3]).max() > 1e-4


@encoding
def test_a_sentence_of_nothing_but_padding_gives_numbers(spec, normal):
    output = self_attention(spec)(normal(B, T, D), keep=np.zeros((B, T), bool))
    assert np.isfinite(oracle.array(output)).all()


@crossing
def test_padding_of_the_memory_changes_nothing(spec, normal):
    layer, x, memory = CrossAttention(D, H, heads=spec), normal(B, T, D), normal(B, S, D)
    output = layer(x, memory, keep=MEMORY_KEEP)
    close(output, layer(x, np.where(MEMORY_KEEP[:, :, None], memory, 7.0), keep=MEMORY_KEEP))
    close(output[1:], layer(x[1:], memory[1:, : S - 2], keep=MEMORY_KEEP[1:, : S - 2]))
    assert np.abs(oracle.array(layer(x, memory))[1] - oracle.array(output)[1]).max() > 1e-4


@causal
@pytest.mark.parametrize("training", [False, True])
def test_no_future_leaks(spec, training, normal):
    """A change at place 6 leaves the places before it alone, and reaches place 6."""
    layer, x = self_attention(spec, causal=True), normal(B, T, D)
    layer.build(x.shape)
    other = x.copy()
    other[:, 6:] += 1.0
    weights = layer.get_weights()  # some of which a pass of training changes
    before = oracle.array(layer(x, training=training))
    layer.set_weights(weights)
    after = oracle.array(layer(other, training=training))
    np.testing.assert_allclose(before[:, :6], after[:, :6], atol=1e-5)
    assert np.abs(before[:, 6] - after[:, 6]).max() > 1e-3


@causal
def test_no_future_leaks_however_large_it_is(spec, normal):
    """By lost digits: what comes late must not be subtracted from what came before."""
    layer, x = self_attention(spec, causal=True), normal(B, T, D)
    other = x.copy()
    other[:, -1] = 20.0
    before, after = oracle.array(layer(x)), oracle.array(layer(other))
    np.testing.assert_allclose(before[:, :-1], after[:, :-1], atol=1e-4)


@causal
@pytest.mark.parametrize("rotary", [False, True])
def test_step_by_step_equals_the_whole(spec, rotary, normal):
    if rotary and not may_be_rotated(spec):
        pytest.skip("rotary positions have no meaning for it")
    layer, x = self_attention(spec, causal=True, rotary=rotary), normal(B, T, D)
    whole = layer(x)
    state = layer.start(B, T + 3)  # with slots to spare
    for index in range(T):
        output, state = layer.step(x[:, index : index + 1], state, index=index)
        close(output[:, 0], whole[:, index])


@encoding
def test_rotary_positions_leave_nothing_but_the_distance(spec, normal):
    """Later in the text, the same places are the same to each other."""
    if not may_be_rotated(spec):
        pytest.skip("rotary positions have no meaning for it")
    if "performer" in spec or formulas.chooses_keys(spec):
        pytest.skip("an approximation of the dot product, which may be another for other vectors")
    if "max_length" in spec and "linformer" not in spec:
        pytest.skip("it has weights for each position")
    layer, x = self_attention(spec, rotary=True), normal(B, T, D)
    layer.build(x.shape)
    before = oracle.array(layer(x))
    rotate = layer.rotary.call
    layer.rotary.call = lambda x, **options: rotate(x, **options | {"offset": 7})
    np.testing.assert_allclose(oracle.array(layer(x)), before, atol=1e-4)


@causal
def test_state_is_a_tree_of_batch_first_tensors(spec):
    layer = self_attention(spec, causal=True)
    layer.build((None, None, D))
    state = layer.start(3, 7)
    assert all(tensor.shape[0] == 3 for tensor in keras.tree.flatten(state))


@pytest.mark.parametrize(
    "spec",
    [
        "local(window=4)", "local(window=4, global_tokens=2)", "global_tokens(count=2)",
        "strided(stride=3, window=2, local=3, global_tokens=1)", "block(size=3)", "linear",
        "efficient", "rfa(features=8)", "performer(features=8)", "aft",
        "aft(kind='local', window=4)", "compressed(length=4, factor=3)",
    ],
)  # fmt: skip
def test_what_decoding_keeps_does_not_grow_with_the_text(spec):
    layer = self_attention(spec, causal=True)
    layer.build((None, None, D))
    short, long = (
        sum(math.prod(tensor.shape) for tensor in keras.tree.flatten(layer.start(1, length)))
        for length in (100, 10_000)
    )
    assert long == short


@crossing
def test_what_is_remembered_once_can_be_recalled_place_by_place(spec, normal):
    layer = CrossAttention(D, H, heads=spec)
    x, memory = normal(B, T, D), normal(B, S, D)
    whole, scores = layer(x, memory, keep=MEMORY_KEEP, return_attention_scores=True)
    remembered = layer.remember(memory, MEMORY_KEEP)
    assert all(tensor.shape[0] == B for tensor in keras.tree.flatten(remembered))
    state = layer.start(B, remembered)
    for index in range(T):
        output, seen, state = layer.step(x[:, index : index + 1], remembered, state)
        close(output[:, 0], whole[:, index])
        close(seen[:, :, 0], scores[:, :, index])
    # Those of mechanisms that say so are probabilities; `monotonic` may have passed the end.
    scores, first = oracle.array(scores), 0
    for mechanism in layer.mechanisms:
        of_group = scores[:, first : first + mechanism.num_heads]
        first += mechanism.num_heads
        if mechanism.weights_are_probabilities:
            assert of_group.min() > -1e-6
            assert of_group.sum(-1).max() < 1 + 1e-4
            assert "monotonic" in spec or of_group.sum(-1).min() > 1 - 1e-4


@crossing
def test_hypotheses_of_a_sentence_share_its_memory(spec, normal):
    layer = CrossAttention(D, H, heads=spec)
    layer.build((None, None, D), (None, None, D))
    x, memory = normal(3 * B, 2, D), normal(B, S, D)
    remembered = layer.remember(memory, MEMORY_KEEP)
    copied = layer.remember(np.repeat(memory, 3, axis=0), np.repeat(MEMORY_KEEP, 3, axis=0))
    together, apart = layer.start(3 * B, remembered), layer.start(3 * B, copied)
    for index in range(2):
        place = x[:, index : index + 1]
        output, _, together = layer.step(place, remembered, together)
        expected, _, apart = layer.step(place, copied, apart)
        close(output, expected)


@pytest.mark.parametrize("spec", [spec for spec in formulas.SPECS if instance(spec).can_encode])
def test_attention_scores_are_what_the_values_are_weighted_with(spec, normal):
    mechanism = instance(spec)
    query, key, value = normal(B, H, T, D // H), normal(B, H, T, D // H), normal(B, H, T, D // H)
    output, scores = mechanism(query, key, value, keep=KEEP, return_attention_scores=True)
    assert tuple(scores.shape) == (B, H, T, T)
    if formulas.weighs_values(spec):
        close(output, oracle.array(scores) @ value, atol=1e-4)
    np.testing.assert_allclose(oracle.array(scores)[1, :, : T - 3, T - 3 :], 0, atol=1e-6)


def uses_of(spec):
    """The ways in which a whole line of heads may be used."""
    made = [MECHANISMS[group.name](H, D // H, **group.options) for group in parse_heads(spec, H)]
    uses = ("can_encode", "can_be_causal", "can_cross")
    return [use for use in uses if all(getattr(mechanism, use) for mechanism in made)]


everywhere = pytest.mark.parametrize(
    ("spec", "use"), [(spec, use) for spec in dict.fromkeys(ALL) for use in uses_of(spec)]
)


def layer_of(spec, use):
    """A layer with this spec, and the shapes of its inputs."""
    if use == "can_cross":
        return CrossAttention(D, H, heads=spec), [(T, D), (S, D)]
    return self_attention(spec, causal=use == "can_be_causal"), [(T, D)]


@everywhere
def test_config_round_trip(spec, use, normal):
    layer, shapes = layer_of(spec, use)
    inputs = [normal(B, *shape) for shape in shapes]
    expected = layer(*inputs)
    twin = type(layer).from_config(layer.get_config())
    twin(*inputs)
    twin.set_weights(layer.get_weights())
    close(twin(*inputs), expected, atol=1e-6)


@everywhere
def test_saved_and_loaded(spec, use, normal, tmp_path):
    layer, shapes = layer_of(spec, use)
    inputs = [keras.Input((None, D)) for _ in shapes]
    model = keras.Model(inputs, layer(*inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    given = [normal(B, *shape) for shape in shapes]
    close(loaded(given), model(given), atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@everywhere
def test_mixed_precision_is_near_full_precision(spec, use, dtype, normal):
    layer, shapes = layer_of(spec, use)
    inputs = [normal(B, *shape) for shape in shapes]
    keep = MEMORY_KEEP if use == "can_cross" else KEEP
    if use == "can_be_causal":
        keep = None  # while decoding there is no padding before a place
    expected = oracle.array(layer(*inputs, keep=keep))
    config = layer.get_config() | {"dtype": f"mixed_{dtype}"}
    mixed = type(layer).from_config(config)
    mixed(*inputs)
    mixed.set_weights(layer.get_weights())
    output = mixed(*inputs, keep=keep)
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    outputs = [output]
    if use != "can_encode":  # step by step as well
        outputs.append(step_by_step(mixed, [ops.cast(x, dtype) for x in inputs], keep))
    shown = 1.0 if keep is None or use == "can_cross" else keep[:, :, None]
    for output in outputs:
        apart = shown * np.abs(oracle.array(ops.cast(output, "float32")) - expected)
        if "rfa" in spec:  # whose quotients may be large
            apart = apart / np.maximum(np.abs(expected), 1.0)
        # Where rounding moves a place to another bucket its output may be another; few are.
        assert np.median(apart) < 0.05
        if not formulas.chooses_keys(spec):
            assert apart.max() < 0.15


def step_by_step(layer, inputs, keep):
    """The outputs [B, T, D] of decoding."""
    x, *memory = inputs
    outputs = []
    if memory:
        remembered = layer.remember(*memory, keep)
        state = layer.start(B, remembered)
    else:
        state = layer.start(B, T)
    for index in range(T):
        place = x[:, index : index + 1]
        if memory:
            output, _, state = layer.step(place, remembered, state)
        else:
            output, state = layer.step(place, state, index=index)
        outputs.append(output)
    return ops.concatenate(outputs, axis=1)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
@everywhere
def test_every_weight_has_a_finite_gradient_that_is_not_zero(spec, use, dtype, normal):
    """Also where the other sentence of the batch is nothing but padding."""
    layer, shapes = layer_of(spec, use)
    layer = type(layer).from_config(layer.get_config() | {"dtype": dtype})
    inputs = [keras.Input(shape) for shape in shapes]
    keep = keras.Input(shapes[-1][:1], dtype="bool")
    model = keras.Model([*inputs, keep], layer(*inputs, keep=keep))
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss="mse")
    before = [oracle.array(weight) for weight in model.trainable_weights]
    given = [normal(B, *shape) for shape in shapes]
    given.append(np.arange(B)[:, None] < np.ones((1, shapes[-1][0])))  # the first sentence alone
    if before:
        model.train_on_batch(given, normal(B, T, D))
    for was, weight in zip(before, model.trainable_weights, strict=True):
        now = oracle.array(weight)  # moved by the gradient, with a learning rate of 1
        assert np.isfinite(now).all(), weight.path
        assert np.abs(now - was).max() > 0, weight.path


@pytest.mark.parametrize("num_heads", [1, H])  # TensorFlow has other kernels for one
@pytest.mark.parametrize("use", ["encode", "causal", "cross"])
@pytest.mark.parametrize("spec", formulas.SPECS)
def test_agrees_with_a_loop_written_from_the_formula(spec, use, num_heads, normal):
    mechanism = instance(spec, num_heads, causal=use == "causal")
    if not getattr(mechanism, {"causal": "can_be_causal"}.get(use, f"can_{use}")):
        pytest.skip(f"not {use}")
    keep = MEMORY_KEEP if use == "cross" else KEEP
    length = keep.shape[1]
    query = normal(B, num_heads, T, D // H)
    key, value = (normal(B, num_heads, length, D // H) for _ in range(2))
    if use != "cross":  # what is not projected is another part
        if "key" not in mechanism.projections:
            key = query
        if "query" not in mechanism.projections:
            query = key = value
    output = oracle.array(mechanism(query, key, value, keep=keep))
    for b in range(B):
        n = keep[b].sum()
        rows = T if use == "cross" else n  # what a padded place gives does not matter
        expected = formulas.loop(
            spec, mechanism, query[b, :, :rows], key[b, :, :n], value[b, :, :n], use == "causal"
        )
        close(output[b, :, :rows], expected, atol=2e-5)


# What a spec has in it that cannot be used in a way.
REFUSED = {
    "can_encode": ["monotonic", "location"],
    "can_be_causal": ["added=True", "sinkhorn", "linformer", "fourier", "monotonic", "location"],
    "can_cross": [
        "bias=", "local(", "strided(", "global_tokens(count=2)", "block(", "lsh(", "kmeans(",
        "sinkhorn(", "synthesizer(", "aft(kind=", "fourier", "gmlp(",
    ],
}  # fmt: skip


@pytest.mark.parametrize("use", list(REFUSED))
@pytest.mark.parametrize("spec", formulas.SPECS)
def test_nothing_but_these_is_refused_anywhere(spec, use):
    """Or a mechanism that has lost a use by mistake would leave the tests of that use unnoticed."""
    refused = any(part in spec for part in REFUSED[use])
    assert getattr(instance(spec), use) == (not refused)


@pytest.mark.parametrize("use", ["encode", "causal", "cross"])
@pytest.mark.parametrize("spec", formulas.SPECS)
def test_it_is_refused_where_it_cannot_be_used(spec, use):
    mechanism = instance(spec)
    make = {
        "encode": lambda: self_attention(spec),
        "causal": lambda: self_attention(spec, causal=True),
        "cross": lambda: CrossAttention(D, H, heads=spec),
    }[use]
    if getattr(mechanism, {"causal": "can_be_causal"}.get(use, f"can_{use}")):
        make()
    else:
        with pytest.raises(ValueError, match=r"cannot be .* It may be"):
            make()
