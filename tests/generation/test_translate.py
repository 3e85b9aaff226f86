import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.generation.loop import decode_greedily
from tests import oracle


def scripted(script, vocabulary_size=9):
    """A step function that writes the script's rows, and a state that counts its steps."""

    def step(ids, state, index):
        logits = ops.one_hot(ops.take(script, index, axis=1), vocabulary_size)
        return logits, state + 1

    return step


def test_each_row_ends_with_its_own_end_and_the_loop_with_the_last():
    script = ops.array([[5, 2, 7, 7, 7], [6, 7, 8, 2, 7]])
    ids = decode_greedily(scripted(script), ops.zeros((2,)), ops.array([5, 5]), 5, begin=1, end=2)
    assert oracle.array(ids).tolist() == [[5, 2, 0, 0, 0], [6, 7, 8, 2, 0]]


def test_a_row_that_does_not_end_is_cut_at_its_own_limit():
    script = ops.array([[5, 6, 7], [5, 6, 7]])
    ids = decode_greedily(scripted(script), ops.zeros((2,)), ops.array([3, 2]), 3, begin=1, end=2)
    assert oracle.array(ids).tolist() == [[5, 6, 7], [5, 6, 0]]


@pytest.fixture(scope="module")
def translator():
    lines = ["to be or not to be that is the question"] * 9
    tokenizer = kt.Tokenizer.learn(lines, vocabulary_size=30, kind="char")
    config = kt.ModelConfig(
        tokenizer.vocabulary_size, d_model=16, d_ff=32, num_heads=2, encoder_layers=1,
        decoder_layers=1, max_length=64,
    )  # fmt: skip
    return kt.Translator(kt.Transformer(config), tokenizer, tokens_per_batch=64)


def test_the_loop_gives_what_the_whole_model_gives(translator):
    """Without a cache: the model is run anew on all that has been written."""
    model = translator.decoder.model
    source = np.array([[5, 6, 7, 8, 2]], "int32")
    written = [1]
    for _ in range(10):
        logits = model({"source": source, "target": np.array([written], "int32")})
        written.append(int(np.argmax(oracle.array(logits)[0, -1])))
    ids = np.asarray(translator.decoder.predict_on_batch(source))[0]
    np.testing.assert_array_equal(ids[: len(written) - 1], written[1:])


def test_a_line_is_translated_alike_alone_and_among_others(translator):
    lines = ["to be", "that is the question", "", "or not to be", "to"]
    together = translator(lines)
    assert together == [translator([line])[0] for line in lines]
    assert together[2] == ""


def test_a_line_longer_than_the_model_reads_is_cut(translator):
    assert translator(["to be " * 100]) == translator(["to be " * 11])  # 66 characters
