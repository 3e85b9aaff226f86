"""Every attention mechanism in one model, exported, decodes as it does in Python."""

import dataclasses
import re

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.exporting.signatures import Signatures
from keras_transformer.exporting.weights import copy_for_serving
from tests.attention.formulas import SPECS
from tests.attention.test_contract import instance

tf = pytest.importorskip("tensorflow")


def one_of_each(use):
    """A head spec with every mechanism that may be used so, and `dot` for the rest."""
    specs = [spec for spec in SPECS if getattr(instance(spec), use)]
    heads = [re.sub(r"max_length=\d+", "max_length=24", spec) for spec in specs]
    return " + ".join(heads + ["dot"] * (len(SPECS) - len(heads)))


@pytest.fixture(scope="module")
def model(exported):
    keras.utils.set_random_seed(1)
    num_heads = len(SPECS)
    config = kt.ModelConfig(
        exported.tokenizer.vocabulary_size, d_model=4 * num_heads, d_ff=64, num_heads=num_heads,
        encoder_layers=1, decoder_layers=1, norm="pre", max_length=24,
        encoder_heads=one_of_each("can_encode"),
        decoder_heads=one_of_each("can_be_causal"),
        cross_heads=one_of_each("can_cross"),
    )  # fmt: skip
    model = kt.Transformer(config)
    for weight in model.trainable_weights:
        weight.assign(weight * 2.0)
    return model


DECODING = kt.DecodingConfig(beams=3)
LINES = ["to be", "that is the question", "or not to be", "to", "mind the mind", "nobler"]


@pytest.fixture(scope="module")
def loaded(model, exported, tmp_path_factory):
    """Some signatures of it, saved and loaded; to trace all of them would take minutes."""
    signatures = Signatures(copy_for_serving(model, "float32"), exported.tokenizer, DECODING)
    chosen = {
        name: function
        for name, function in signatures.all().items()
        if name in ("serving_default", "greedy", "start", "step")
    }
    path = str(tmp_path_factory.mktemp("mechanisms"))
    tf.saved_model.save(signatures, path, signatures=chosen)
    return tf.saved_model.load(path)


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
