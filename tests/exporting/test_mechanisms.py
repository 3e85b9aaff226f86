"""Every attention mechanism in one model, exported, decodes as it does in Python."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.exporting.signatures import Signatures
from keras_transformer.exporting.weights import copy_for_serving
from tests.attention.formulas import SPECS
from tests.attention.test_contract import instance

tf = pytest.importorskip("tensorflow")


def one_of_each(use, num_heads):
    """A head spec with every mechanism that may be used so, and `dot` for the rest."""
    names, heads = set(), []
    for spec in SPECS:
        name = spec.partition("(")[0]
        if getattr(instance(spec), use) and name not in names:
            names.add(name)
            heads.append(spec.replace("max_length=16", "max_length=24"))
    return " + ".join(heads + ["dot"] * (num_heads - len(heads)))


# Of mechanisms with several forms, those whose state while decoding is another one.
VARIANTS = [
    "dot(bias='shaw')", "dot(bias='t5')", "dot(bias='alibi')", "dot(bias='xl')",
    "local(window=4, global_tokens=2)", "strided(stride=3, window=4, local=3)",
    "aft(kind='local', window=4)", "aft(kind='full', max_length=24)",
    "synthesizer(kind='random', max_length=24)", "synthesizer(rank=4, max_length=24)",
    "synthesizer(mixed=True, max_length=24)",
]  # fmt: skip


def make_model(exported, num_heads, **heads):
    """Untrained, and yet what it writes depends on what it reads.

    With an output projection of its own, for else it would repeat what it has read last; larger
    weights would do as well, but make so much of rounding that another processor writes another
    text.
    """
    keras.utils.set_random_seed(1)
    config = kt.ModelConfig(
        exported.tokenizer.vocabulary_size, d_model=4 * num_heads, d_ff=64, num_heads=num_heads,
        encoder_layers=1, decoder_layers=1, norm="pre", max_length=24, tie_output=False, **heads,
    )  # fmt: skip
    return kt.Transformer(config)


@pytest.fixture(scope="module")
def model(exported):
    uses = {"encoder": "can_encode", "decoder": "can_be_causal", "cross": "can_cross"}
    heads = {f"{name}_heads": one_of_each(use, 24) for name, use in uses.items()}
    return make_model(exported, 24, **heads)


DECODING = kt.DecodingConfig(beams=3)
LINES = ["to be", "that is the question", "or not to be", "to", "mind the mind", "nobler"]


def save_and_load(model, exported, path, *names):
    """Some signatures of a model; to trace all of them would take minutes."""
    signatures = Signatures(copy_for_serving(model, "float32"), exported.tokenizer, DECODING)
    chosen = {name: signatures.all()[name] for name in names}
    tf.saved_model.save(signatures, str(path), signatures=chosen)
    return tf.saved_model.load(str(path))


@pytest.fixture(scope="module")
def loaded(model, exported, tmp_path_factory):
    path = tmp_path_factory.mktemp("mechanisms")
    return save_and_load(model, exported, path, "serving_default", "greedy", "start", "step")


@pytest.mark.parametrize(
    ("signature", "decoding"),
    [("serving_default", DECODING), ("greedy", dataclasses.replace(DECODING, beams=1))],
)
def test_it_decodes_in_the_saved_model(signature, decoding, model, exported, loaded):
    found = loaded.signatures[signature](text=tf.constant(LINES))
    texts = [text.decode("utf-8") for text in found["text"].numpy()]
    translator = kt.Translator(model, exported.tokenizer, decoding)
    expected = [best[0] for best in translator.n_best(LINES, 1)]
    assert texts == [best.text for best in expected]
    np.testing.assert_allclose(found["score"], [best.score for best in expected], rtol=1e-3)
    assert len(set(texts)) > 1


def test_it_streams_what_greedy_search_writes(loaded):
    start, step, greedy = (loaded.signatures[name] for name in ("start", "step", "greedy"))
    given = start(text=tf.constant(LINES))
    given.pop("truncated")
    while not given["finished"].numpy().all():
        found = step(**given)
        given |= {name: found[name] for name in given.keys() & found.keys()}
    np.testing.assert_array_equal(found["text"], greedy(text=tf.constant(LINES))["text"])


@pytest.mark.parametrize(
    "heads", ["linear", "local(window=4)", "dot + aft(kind='local', window=4) + lsh(buckets=2)"]
)
def test_xla_decodes_the_same_whatever_the_state(heads, exported, tmp_path):
    model = make_model(exported, heads.count("+") + 1, decoder_heads=heads)
    names = ("decode_ids", "decode_ids_compiled")
    signatures = save_and_load(model, exported, tmp_path, *names).signatures
    ids, lengths = tf.constant([[5, 6, 7, 8], [9, 5, 0, 0], [7, 7, 6, 0]]), tf.constant([4, 2, 3])
    expected, found = (signatures[name](ids=ids, lengths=lengths) for name in names)
    np.testing.assert_array_equal(found["ids"], expected["ids"])
    np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-3)
    assert len(set(map(bytes, expected["ids"].numpy()))) > 1


def test_variants_decode_in_the_saved_model(exported, tmp_path):
    model = make_model(exported, len(VARIANTS), decoder_heads=" + ".join(VARIANTS))
    found = save_and_load(model, exported, tmp_path, "greedy").signatures["greedy"](
        text=tf.constant(LINES)
    )
    greedy = kt.Translator(model, exported.tokenizer, dataclasses.replace(DECODING, beams=1))
    assert [text.decode("utf-8") for text in found["text"].numpy()] == greedy(LINES)
