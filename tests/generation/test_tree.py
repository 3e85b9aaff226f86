"""The tree of a beam search, of a model whose tree is known."""

import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.generation.beam import BeamSearch
from keras_transformer.generation.constraints import Constraints
from keras_transformer.generation.loop import search
from keras_transformer.generation.tree import Node, WatchedBeamSearch, beam_tree, trace
from keras_transformer.text.tokenizer import BEGIN, END
from tests.conftest import make_model

A, B = 3, 4
# P of the next token after each: A is likelier to begin with, but B leads to the end.
AFTER = np.full((5, 5), 1e-12)
AFTER[BEGIN, [A, B]] = 0.6, 0.4
AFTER[A, [END, A, B]] = 0.30, 0.36, 0.34
AFTER[B, [END, A, B]] = 0.90, 0.06, 0.04
LOGITS = np.log(AFTER / AFTER.sum(axis=1, keepdims=True)).astype("float32")


def step(ids, state, index):
    """A model that knows the last token alone."""
    return ops.take(ops.array(LOGITS), ids, axis=0), state


def two_letters(kind, beams, limit=6, **options):
    only_words = Constraints(END, suppressed=(0, BEGIN))
    limits = ops.array([limit], "int32")
    return kind(limits, limit, END, beams, constraints=only_words, **options)


def test_the_tree_of_two_beams_is_that_of_the_letters():
    tree = trace(step, ops.zeros((2,)), two_letters(WatchedBeamSearch, 2), BEGIN)
    assert tree.best == (B, END)
    (first, second) = tree.places  # then nothing better can come
    assert [node.ids for node in first] == [(A,), (B,)]
    assert [node.ids for node in second] == [(B, END), (A, A), (A, B)]
    expected = [0.6, 0.4, 0.36, 0.216, 0.204]
    found = [node.log_probability for node in (*first, *second)]
    np.testing.assert_allclose(found, np.log(expected), atol=1e-4)
    assert [node.score is None for node in (*first, *second)] == [True, True, False, True, True]


def test_one_beam_is_a_line_that_misses_the_best():
    tree = trace(step, ops.zeros((1,)), two_letters(WatchedBeamSearch, 1, limit=2), BEGIN)
    assert [[node.ids for node in place] for place in tree.places] == [[(A,)], [(A, A)]]
    assert tree.best == (A, A)


def test_an_ended_hypothesis_has_the_score_that_it_was_ranked_by():
    strategy = two_letters(WatchedBeamSearch, 2, alpha=1.0, offset=0.0)
    tree = trace(step, ops.zeros((2,)), strategy, BEGIN)
    ended = {node.ids: node for place in tree.places for node in place if node.score is not None}
    assert len(ended) > 1
    for ids, node in ended.items():
        np.testing.assert_allclose(node.score, node.log_probability / len(ids), rtol=1e-4)
    assert max(ended.values(), key=lambda node: node.score).ids == tree.best


@pytest.mark.parametrize("beams", [1, 2, 4])
def test_watching_changes_nothing_and_every_hypothesis_continues_one(beams):
    tree = trace(step, ops.zeros((beams,)), two_letters(WatchedBeamSearch, beams), BEGIN)
    found = search(step, ops.zeros((beams,)), two_letters(BeamSearch, beams), BEGIN)
    ids = ops.convert_to_numpy(found["ids"])[0, 0]
    assert tree.best == tuple(ids[ids != 0])
    before = [Node((), 0.0)]
    for place in tree.places:
        went_on = {node.ids for node in before if node.score is None}
        assert {node.ids[:-1] for node in place} <= went_on
        assert sum(node.score is None for node in place) <= beams
        before = place


@pytest.mark.parametrize(
    "options", [{}, {"beams": 3, "coverage_penalty": 0.5}, {"no_repeat_ngram": 1}]
)
def test_the_tree_of_a_model_leads_to_its_translation(options):
    tokenizer = kt.Tokenizer.learn(["to be or not to be"] * 9, vocabulary_size=11, kind="char")
    model = make_model(tokenizer)
    decoding = kt.DecodingConfig(max_length=8, **options)
    (best,) = kt.Translator(model, tokenizer, decoding).n_best(["not to be"], 1)[0]
    (ids,) = tokenizer.encode(["not to be"])
    tree = beam_tree(model, ops.array([[*ids, END]], "int32"), decoding)
    assert tokenizer.pieces(tree.best) == best.tokens
    (node,) = [node for node in tree.places[len(tree.best) - 1] if node.ids == tree.best]
    np.testing.assert_allclose(node.log_probability, sum(best.token_scores), rtol=1e-3)
