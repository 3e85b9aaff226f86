import dataclasses

import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.generation.generate import Ensemble, generate, score
from keras_transformer.generation.translate import Searcher
from tests import oracle
from tests.conftest import make_model

LINES = ["to be", "that is the question", "", "or not to be", "to"]
GREEDY = kt.DecodingConfig(beams=1)


@pytest.fixture(scope="module")
def tokenizer():
    lines = ["to be or not to be that is the question"] * 9
    return kt.Tokenizer.learn(lines, vocabulary_size=30, kind="char")


@pytest.fixture(scope="module")
def model(tokenizer):
    return make_model(tokenizer)


@pytest.fixture(scope="module")
def translator(model, tokenizer):
    return kt.Translator(model, tokenizer, tokens_per_batch=256)


def test_the_loop_gives_what_the_whole_model_gives(model):
    """Without a cache: the model is run anew on all that has been written."""
    source = np.array([[5, 6, 7, 8, 2]], "int32")
    written = [1]
    for _ in range(10):
        logits = oracle.array(model({"source": source, "target": np.array([written], "int32")}))
        logits[..., :2] = -np.inf  # padding and begin are no tokens to write
        written.append(int(np.argmax(logits[0, -1])))
    ids = oracle.array(generate(model, source, GREEDY)["ids"])[0, 0]
    np.testing.assert_array_equal(ids[:10], written[1:])


@pytest.mark.parametrize(
    "decoding",
    [
        GREEDY,
        kt.DecodingConfig(),
        kt.DecodingConfig(beams=2, coverage_penalty=0.2, length_offset=0.0),
    ],
    ids=["greedy", "beam", "coverage"],
)
def test_a_line_is_translated_alike_alone_in_a_batch_and_in_another_order(
    model, tokenizer, decoding
):
    translator = kt.Translator(model, tokenizer, decoding)
    together = translator(LINES)
    assert together == [translator([line])[0] for line in LINES]
    assert together == translator(LINES[::-1])[::-1]
    assert together[2] == ""
    assert len(set(together)) > 3


def test_a_line_longer_than_the_model_reads_is_cut(translator):
    assert translator(["to be " * 100]) == translator(["to be " * 9])  # 54 characters


@pytest.mark.parametrize(
    "decoding",
    [
        kt.DecodingConfig(beams=1, repetition_penalty=1.3),
        kt.DecodingConfig(beams=3),
        kt.DecodingConfig(beams=3, repetition_penalty=1.3, coverage_penalty=0.3, length_offset=0.0),
    ],
    ids=["greedy", "beam", "penalties"],
)
def test_what_is_found_has_the_scores_that_the_same_pair_is_given(model, decoding):
    """With and without a cache, moved with its hypothesis or not."""
    source = ops.array([[5, 6, 7, 8, 2], [9, 2, 0, 0, 0]], "int32")
    found = generate(model, source, decoding, n_best=decoding.beams)
    for rank in range(decoding.beams):
        given = score(model, source, found["ids"][:, rank], decoding)
        for name in ("scores", "token_scores"):
            np.testing.assert_allclose(
                oracle.array(given[name]), oracle.array(found[name])[:, rank], atol=1e-4
            )


def test_hypotheses_come_best_first_with_their_alignments(translator):
    lines = [line for line in LINES if line]
    for line, hypotheses in zip(lines, translator.n_best(lines, 3), strict=True):
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in hypotheses:
            assert hypothesis.alignment.shape == (len(hypothesis.tokens), len(line) + 2)
            np.testing.assert_allclose(hypothesis.alignment.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("beams", [1, 2])
def test_nothing_has_the_score_0(model, tokenizer, beams):
    decoding = kt.DecodingConfig(beams=beams, length_offset=0.0)
    (best,) = kt.Translator(model, tokenizer, decoding).n_best([""], 1)
    assert (best[0].text, best[0].score, best[0].tokens) == ("", 0.0, [])


def test_pairs_are_scored_alike_alone_and_together(translator):
    targets = ["be", "or not to be or", "that", "is", ""]
    together = translator.score(LINES, targets)
    for line, target, scored in zip(LINES, targets, together, strict=True):
        (alone,) = translator.score([line], [target])
        np.testing.assert_allclose(alone.token_scores, scored.token_scores, atol=1e-4)
        assert len(scored.tokens) == len(scored.token_scores)
        penalty = ((5 + len(scored.tokens)) / 6) ** 0.6
        np.testing.assert_allclose(scored.score, sum(scored.token_scores) / penalty, rtol=1e-5)


def test_an_alignment_is_the_attention_of_the_last_layer_but_one(model, translator, tokenizer):
    (hypothesis,) = translator.n_best(["or not to be"], 1)[0]
    (ids,) = tokenizer.encode(["or not to be"])
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
    target = [1, *(pieces.index(token) for token in hypothesis.tokens[:-1])]
    source = np.array([[*ids, 2]], "int32")
    scores = model.attention_scores(source, np.array([target], "int32"))["cross"][0]
    expected = oracle.array(scores)[0].mean(axis=0)
    np.testing.assert_allclose(hypothesis.alignment, expected, atol=1e-4)


def test_translations_begin_with_their_prefixes(translator):
    prefixes = ["no", "be or", "th", "is", ""]
    translations = translator(LINES, prefixes)
    assert all(
        translation.startswith(prefix) if line else translation == ""
        for line, prefix, translation in zip(LINES, prefixes, translations, strict=True)
    )
    assert translations[4] == translator([LINES[4]])[0]


def test_drawing_is_repeatable_and_differs_between_seeds(model, tokenizer):
    lines = [line for line in LINES if line]
    drawing = kt.DecodingConfig(temperature=1.5, top_k=8, top_p=0.9)
    first = kt.Translator(model, tokenizer, drawing)(lines)
    assert first == kt.Translator(model, tokenizer, drawing)(lines)
    other = dataclasses.replace(drawing, seed=99)
    assert first != kt.Translator(model, tokenizer, other)(lines)


def test_an_ensemble_of_one_model_twice_writes_as_the_model_does(model, tokenizer, translator):
    twice = kt.Translator([model, model], tokenizer)
    assert twice(LINES) == translator(LINES)
    np.testing.assert_allclose(
        twice.score(["to be"], ["or not"])[0].token_scores,
        translator.score(["to be"], ["or not"])[0].token_scores,
        rtol=1e-4,
    )


def test_an_ensemble_has_the_mean_of_its_models_probabilities(model, tokenizer):
    other = make_model(tokenizer, seed=4)
    batch = {"source": np.array([[5, 6, 2]], "int32"), "target": np.array([[1, 7]], "int32")}
    both = Ensemble([model, other])
    powers = [np.exp(oracle.array(one(batch))) for one in (model, other)]
    expected = np.mean([power / power.sum(axis=-1, keepdims=True) for power in powers], axis=0)
    np.testing.assert_allclose(np.exp(oracle.array(both(batch))), expected, rtol=1e-4, atol=1e-7)
    memory = both.encode(batch["source"])
    state = both.start(1, 2, memory)
    for index in range(2):
        logits, state, alignment = both.step(
            batch["target"][:, index], state, memory, index=index, return_alignment=True
        )
        np.testing.assert_allclose(
            np.exp(oracle.array(logits)), expected[:, index], rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(oracle.array(alignment).sum(), 1, rtol=1e-5)


@pytest.mark.parametrize("decoding", [GREEDY, kt.DecodingConfig()], ids=["greedy", "beam"])
def test_compiled_by_xla_the_search_gives_the_same(model, decoding):
    source = np.array([[5, 6, 7, 8, 2], [9, 2, 0, 0, 0]], "int32")
    inputs = {"source": source, "seed": np.zeros(2, "int32")}
    found = []
    for jit_compile in (False, True):
        searcher = Searcher(model, decoding, (), n_best=1, details=True)
        searcher.compile(jit_compile=jit_compile)
        found.append(searcher.predict_on_batch(inputs))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    for plain, compiled in zip(found[0][1:], found[1][1:], strict=True):
        np.testing.assert_allclose(plain, compiled, atol=1e-4)


def test_what_cannot_be_decoded_is_refused_with_the_reason(model, tokenizer, translator):
    with pytest.raises(kt.InputError, match="5 best of 4 beams"):
        translator.n_best(["to be"], 5)
    with pytest.raises(kt.InputError, match="no piece 'zebra'"):
        kt.Translator(model, tokenizer, kt.DecodingConfig(suppress="zebra"))
    with pytest.raises(kt.InputError, match=r"decoding.beams is 0; expected at least 1"):
        kt.DecodingConfig(beams=0)
    with pytest.raises(kt.InputError, match=r"decoding.repetition_penalty is 0.5"):
        kt.DecodingConfig(repetition_penalty=0.5)  # log P could rise
    with pytest.raises(kt.InputError, match="1 prefixes for 2 lines"):
        translator(["to", "be"], ["or"])
    with pytest.raises(kt.InputError, match="Drawing gives one"):
        kt.Translator(model, tokenizer, kt.DecodingConfig(temperature=1.0)).n_best(["to be"], 2)
    other = kt.Tokenizer.learn(["abc"] * 9, vocabulary_size=8, kind="char")
    with pytest.raises(kt.InputError, match="the tokenizer 8"):
        kt.Translator(model, other)


def test_suppressed_pieces_are_not_written(model, tokenizer, translator):
    used = translator.n_best(["or not to be"], 1)[0][0].tokens
    piece = next(token for token in used if token != "</s>")
    suppressing = kt.Translator(model, tokenizer, kt.DecodingConfig(suppress=piece))
    assert piece not in suppressing.n_best(["or not to be"], 1)[0][0].tokens
