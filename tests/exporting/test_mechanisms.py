"""Every attention mechanism in one model, exported, decodes as it does in Python."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
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


@pytest.fixture(scope="module")
def model(exported):
    keras.utils.set_random_seed(1)
    num_heads = 24
    config = kt.ModelConfig(
        exported.tokenizer.vocabulary_size, d_model=4 * num_heads, d_ff=64, num_heads=num_heads,
        encoder_layers=1, decoder_layers=1, norm="pre", max_length=24,
        encoder_heads=one_of_each("can_encode", num_heads),
        decoder_heads=one_of_each("can_be_causal", num_heads),
        cross_heads=one_of_each("can_cross", num_heads),
    )  # fmt: skip
    model = kt.Transformer(config)
    for weight in model.trainable_weights:
        weight.assign(weight * 2.0)
    return model


LINES = ["to be", "that is the question", "or not to be", "to", "mind the mind", "nobler"]


@pytest.mark.xfail(
    strict=True,
    reason="scores differ from Python's, also greedily, and so does what beam search finds; open",
)
def test_it_decodes_in_the_saved_model(model, exported, tmp_path):
    loaded = tf.saved_model.load(str(kt.export(model, exported.tokenizer, tmp_path)))
    for signature, decoding in (
        ("serving_default", kt.DecodingConfig()),
        ("greedy", kt.DecodingConfig(beams=1)),
    ):
        found = loaded.signatures[signature](text=tf.constant(LINES))
        texts = [text.decode("utf-8") for text in found["text"].numpy()]
        translator = kt.Translator(model, exported.tokenizer, decoding)
        expected = [best[0] for best in translator.n_best(LINES, 1)]
        assert texts == [best.text for best in expected]
        np.testing.assert_allclose(found["score"], [best.score for best in expected], rtol=1e-3)
        assert len(set(texts)) > 1
