import sys

import ctranslate2
import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.attention import MECHANISMS
from keras_transformer.errors import InputError
from keras_transformer.exporting.ctranslate2 import export_ctranslate2

BEGIN, END = 1, 2
# Lengths differ, so that both sides of a batch have padding.
SOURCES = [[5, 9, 6], [12, 4, 8, 8, 7, 10, 5, 13, 6], [11]]
TARGETS = [[7, 5, 4, 12, 3, 9, 9], [10, 6], [8, 13, 4]]

# Every value of a field meets every value of another in some row, the activation's apart.
KINDS = [
    # norm, positions, gated, tie_output, activation
    ("pre", "sinusoidal", False, True, "relu"),
    ("pre", "learned", True, False, "gelu"),
    ("pre", "rotary", False, False, "swish"),
    ("pre", "rotary", True, True, "silu"),
    ("post", "sinusoidal", True, False, "tanh"),
    ("post", "learned", False, True, "sigmoid"),
    ("post", "rotary", False, True, "gelu"),
]


@pytest.fixture(scope="module")
def tokenizer():
    lines = ["to be or not to be that is the question"] * 9
    return kt.Tokenizer.learn(lines, vocabulary_size=30, kind="char")


def make_model(tokenizer, dtype=None, **fields):
    """A model whose weights are large enough, its biases too, for every part to matter."""
    keras.utils.set_random_seed(1)
    defaults = dict(d_model=16, d_ff=24, num_heads=2, encoder_layers=1, decoder_layers=1)
    config = kt.ModelConfig(tokenizer.vocabulary_size, **{**defaults, **fields})
    model = kt.Transformer(config, dtype=dtype)
    generator = np.random.default_rng(1)
    for variable in model.trainable_variables:
        noise = 0.2 * generator.standard_normal(variable.shape)
        variable.assign(1.5 * keras.ops.convert_to_numpy(variable) + noise)
    return model


def load(model, tokenizer, path, **options):
    export_ctranslate2(model, tokenizer, path)
    return ctranslate2.Translator(str(path), intra_threads=1, **options)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: "-".join(map(str, kind)))
def exported(request, tokenizer, tmp_path_factory):
    """A model and what CTranslate2 has made of it."""
    names = ("norm", "positions", "gated", "tie_output", "activation")
    fields = dict(zip(names, request.param, strict=True))
    model = make_model(tokenizer, encoder_layers=2, decoder_layers=2, max_length=32, **fields)
    return model, load(model, tokenizer, tmp_path_factory.mktemp("model"))


def pad(rows):
    batch = np.zeros((len(rows), max(map(len, rows))), "int32")
    for row, ids in zip(batch, rows, strict=True):
        row[: len(ids)] = ids
    return batch


def ids_of(pieces, tokenizer):
    known = tokenizer.pieces(range(tokenizer.vocabulary_size))
    return [known.index(piece) for piece in pieces]


def log_probabilities(model, targets):
    """[B, T + 1, V] of every next token, the sources being the ones above."""
    source, target = pad([[*ids, END] for ids in SOURCES]), pad([[BEGIN, *ids] for ids in targets])
    logits = keras.ops.cast(model({"source": source, "target": target}), "float32")
    return keras.ops.convert_to_numpy(keras.ops.log_softmax(logits))


def expected_scores(model):
    logs = log_probabilities(model, TARGETS)
    return [
        [row[place, one] for place, one in enumerate([*ids, END])]
        for row, ids in zip(logs, TARGETS, strict=True)
    ]


def scores(translator, tokenizer):
    pieces = [[tokenizer.pieces(ids) for ids in rows] for rows in (SOURCES, TARGETS)]
    return [result.log_probs for result in translator.score_batch(*pieces)]


def test_every_token_has_the_probability_that_the_model_gives_it(exported, tokenizer):
    model, translator = exported
    ours, theirs = expected_scores(model), scores(translator, tokenizer)
    np.testing.assert_allclose(np.concatenate(theirs), np.concatenate(ours), atol=1e-4)


def test_greedy_search_writes_what_the_model_finds_most_probable(exported, tokenizer):
    """The model is run once, on what was written: each token is the likeliest after the last."""
    model, translator = exported
    results = translator.translate_batch(
        [tokenizer.pieces(ids) for ids in SOURCES],
        beam_size=1,
        max_decoding_length=12,
        min_decoding_length=0,
        return_end_token=True,
        # The whole model hides padding wherever it stands; nobody else does.
        suppress_sequences=[tokenizer.pieces([0])],
    )
    written = [ids_of(result.hypotheses[0], tokenizer) for result in results]
    logs = log_probabilities(model, written)
    logs[..., 0] = -np.inf
    for ids, likeliest in zip(written, logs.argmax(-1).tolist(), strict=True):
        assert ids == likeliest[: len(ids)]
        assert ids[-1] == END or len(ids) == 12
    assert len(set(map(tuple, written))) > 1  # the source matters


@pytest.fixture(scope="module")
def model(tokenizer):
    return make_model(tokenizer, max_length=4)  # which sinusoids need not stop at


def test_a_model_of_mixed_precision_keeps_its_float32_weights(model, tokenizer, tmp_path):
    mixed = make_model(tokenizer, dtype="mixed_bfloat16")
    mixed.set_weights(model.get_weights())
    theirs = scores(load(mixed, tokenizer, tmp_path), tokenizer)
    expected = np.concatenate(expected_scores(model))
    np.testing.assert_allclose(np.concatenate(theirs), expected, atol=1e-4)


def test_the_directory_is_made_loads_as_int8_and_holds_the_tokenizer(model, tokenizer, tmp_path):
    path = tmp_path / "new" / "directory"
    translator = load(model, tokenizer, path, compute_type="int8")
    assert translator.compute_type == "int8_float32"
    assert (path / "tokenizer.model").read_bytes() == tokenizer.model


def test_a_long_source_is_cut_and_still_ends(model, tokenizer, tmp_path):
    translator = load(model, tokenizer, tmp_path)
    source = tokenizer.pieces(SOURCES[1])
    options = dict(max_decoding_length=8, return_scores=True)
    (cut,) = translator.translate_batch([source], max_input_length=5, **options)
    (short,) = translator.translate_batch([source[:4]], **options)
    assert cut.scores == short.scores


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (dict(encoder_heads="dot + other"), "encoder_heads is 'dot + other'; expected \"dot\""),
        (dict(decoder_heads="other"), "decoder_heads is 'other'"),
        (dict(cross_heads="other"), "cross_heads is 'other'"),
        (dict(cross_attention="mix"), "cross_attention is 'mix'; expected \"last\""),
        (dict(activation="mish"), 'activation is \'mish\'; expected "relu" or "gelu"'),
        (dict(target_vocabulary_size=30), "target_vocabulary_size is 30; expected none"),
        (dict(vocabulary_size=99), "The model has 99 tokens, the tokenizer 17"),
    ],
)
def test_what_cannot_be_expressed_is_refused(fields, reason, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(MECHANISMS, "other", MECHANISMS["dot"])

    class Untrained:  # the config is all that is looked at
        config = kt.ModelConfig(
            **{**dict(vocabulary_size=tokenizer.vocabulary_size, d_model=16, num_heads=2), **fields}
        )

    with pytest.raises(InputError) as caught:
        export_ctranslate2(Untrained, tokenizer, tmp_path / "model")
    assert reason in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_a_missing_package_is_named(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(InputError, match=r"pip install 'keras-transformer-seq2seq\[ctranslate2\]'"):
        export_ctranslate2(None, tokenizer, tmp_path)
