import re

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import CrossAttention, DotProductAttention, SelfAttention
from keras_transformer.attention import MECHANISMS
from tests import oracle


def test_one_head_equals_the_formula(normal):
    layer, x = SelfAttention(d_model=8, num_heads=1), normal(1, 5, 8)
    output = oracle.array(layer(x))[0]
    weights = oracle.self_attention_weights(layer)
    expected = oracle.multi_head(x[0], x[0], weights, 1, lambda t, s: True)
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_many_heads_equal_the_formula(normal):
    layer, x = SelfAttention(d_model=8, num_heads=4, head_dim=6, causal=True), normal(1, 5, 8)
    output = oracle.array(layer(x))[0]
    weights = oracle.self_attention_weights(layer)
    expected = oracle.multi_head(x[0], x[0], weights, 4, lambda t, s: s <= t)
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_cross_attention_equals_the_formula(normal):
    layer, x, memory = CrossAttention(d_model=8, num_heads=2), normal(1, 3, 8), normal(1, 5, 12)
    output = oracle.array(layer(x, memory))[0]
    weights = oracle.cross_attention_weights(layer)
    expected = oracle.multi_head(x[0], memory[0], weights, 2, lambda t, s: True)
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_attention_scores_of_a_query_sum_to_one_over_the_tokens(normal):
    keep = np.array([[True, True, True, False]])
    layer = CrossAttention(d_model=8, num_heads=2)
    _, scores = layer(normal(1, 3, 8), normal(1, 4, 8), keep=keep, return_attention_scores=True)
    scores = oracle.array(scores)
    assert scores.shape == (1, 2, 3, 4)
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-6)
    np.testing.assert_array_equal(scores[..., 3], 0)


def test_groups_of_heads_give_what_all_heads_at_once_give(normal):
    x = normal(2, 5, 16)
    together, apart = (
        SelfAttention(16, 4, causal=True),
        SelfAttention(16, 4, heads="3*dot + dot", causal=True),
    )
    together(x), apart(x)
    apart.set_weights(together.get_weights())
    np.testing.assert_allclose(oracle.array(apart(x)), oracle.array(together(x)), atol=1e-6)
    state = apart.start(2, 5)
    output, state = apart.step(x[:, :1], state, index=0)
    np.testing.assert_allclose(
        oracle.array(output)[:, 0], oracle.array(together(x))[:, 0], atol=1e-6
    )


def test_a_sentence_of_nothing_but_padding_gives_numbers(normal):
    layer = SelfAttention(d_model=8, num_heads=2)
    output = layer(normal(1, 3, 8), keep=np.zeros((1, 3), bool))
    assert np.isfinite(oracle.array(output)).all()


def test_dropout_falls_on_the_weights_while_training(normal):
    attention = DotProductAttention(num_heads=1, head_dim=4, dropout=0.5)
    query, ones = normal(1, 1, 50, 4), np.ones((1, 1, 50, 4), "float32")
    np.testing.assert_allclose(oracle.array(attention(query, query, ones)), 1, atol=1e-5)
    dropped = oracle.array(attention(query, query, ones, training=True))
    assert dropped.std() > 0.05


def test_a_size_that_heads_cannot_share_is_refused():
    with pytest.raises(ValueError, match="d_model=10 cannot be divided among num_heads=4"):
        SelfAttention(d_model=10, num_heads=4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dot(window=3)", "dot has no option 'window'. It has scale, bias"),
        ("linear(features=3)", "linear has no option 'features'. It has none"),
        ("synthesizer(bias='t5')", "synthesizer has no option 'bias'"),
        ("dot(bias='t6')", "bias='t6' is not known: choose 'alibi', 't5'"),
        ("local(window=0)", "window=0 has to be a positive whole number"),
        ("local(window=2.5)", "window=2.5 has to be a positive whole number"),
        ("dot(scale='a')", "scale='a' has to be a positive number"),
        ("dot(scale=0)", "scale=0 has to be a positive number"),
        ("dot(bias=['t5'])", "is not known"),
        ("global_tokens(added='False')", "added='False' has to be True or False"),
        ("synthesizer(mixed='no')", "mixed='no' has to be True or False"),
        ("lsh(buckets=3)", "buckets=3 has to be a positive even number"),
        ("aft(kind='none')", "kind='none' is not known: choose 'simple'"),
        ("aft(window=128)", "window=128 is for kind='local', not for 'simple'"),
        ("aft(kind='local', max_length=9)", "max_length=9 is for kind='full', not for 'local'"),
        ("aft(kind='full', rank=0)", "rank=0 has to be a positive whole number"),
        ("performer(redraw=-1)", "redraw=-1 has to be a whole number, 0 or more"),
        ("rfa(redraw=0.5)", "redraw=0.5 has to be a whole number, 0 or more"),
        ("kmeans(momentum=7)", "momentum=7 has to be a number from 0 to 1"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(spec, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SelfAttention(d_model=8, num_heads=2, heads=spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("monotonic(noise=2.0)", "noise=2.0 has to be a number from 0 to 1"),
        ("location(width=3.0)", "width=3.0 has to be a positive whole number"),
        ("location(width=4)", "width=4 has to be a positive odd number"),
    ],
)
def test_an_option_of_cross_attention_that_makes_no_sense_is_refused(spec, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        CrossAttention(d_model=8, num_heads=2, heads=spec)


@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        ("dot + local(window=4, score='cosine')", None),
        ("performer + lsh(buckets=4)", None),
        ("fourier + synthesizer(kind='random', mixed=True)", None),
        ("dot(bias='t5') + local(bias='alibi')", None),
        ("general", "general"),
        ("dot(bias='shaw')", "dot"),
        ("local(bias='xl')", "local"),
        ("rfa", "rfa"),
        ("sinkhorn", "sinkhorn"),
        ("dot + linear", "linear"),
        ("efficient", "efficient"),
        ("aft", "aft"),
        ("gmlp", "gmlp"),
        ("synthesizer", "synthesizer"),
        ("synthesizer(mixed=True)", "synthesizer"),
        ("additive", "additive"),
        ("block(score='mlp')", "block"),
        ("global_tokens(added=True)", "global_tokens"),
    ],
)
def test_rotary_positions_are_for_dot_products(spec, refused):
    SelfAttention(d_model=8, num_heads=2, heads=spec)
    if refused is None:
        SelfAttention(d_model=8, num_heads=2, heads=spec, rotary=True)
        return
    with pytest.raises(ValueError, match=f"The mechanism {refused} does not compare .* rotary"):
        SelfAttention(d_model=8, num_heads=2, heads=spec, rotary=True)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="XLA compiles it elsewhere")
@pytest.mark.parametrize("heads", ["dot + monotonic", "location"])
def test_what_xla_cannot_compile_is_not_given_to_it(heads, normal):
    model = kt.Transformer(
        kt.ModelConfig(
            vocabulary_size=9, d_model=8, d_ff=8, num_heads=2, encoder_layers=1, decoder_layers=1,
            cross_heads=heads,
        )
    )  # fmt: skip
    with pytest.warns(UserWarning, match="Proceeding with `jit_compile=False`"):
        model.compile("sgd", "mse", jit_compile=True)
    assert not model.jit_compile
    batch = {name: np.ones((2, 3), "int32") for name in ("source", "target")}
    assert np.isfinite(model.train_on_batch(batch, normal(2, 3, 9)))


class Unfit(DotProductAttention):
    can_be_causal = False
    can_cross = False


def test_a_mechanism_is_refused_where_it_cannot_be_used(monkeypatch):
    monkeypatch.setitem(MECHANISMS, "unfit", Unfit)
    SelfAttention(d_model=8, num_heads=2, heads="unfit")
    with pytest.raises(ValueError, match=r"cannot be causal.* It may be used in an encoder"):
        SelfAttention(d_model=8, num_heads=2, heads="unfit", causal=True)
    with pytest.raises(
        ValueError, match=r"cannot be cross-attention.* It may be used in an encoder"
    ):
        CrossAttention(d_model=8, num_heads=2, heads="unfit")
