"""The search, over a small model of the test's own that can be searched exhaustively."""

import itertools

import numpy as np
import pytest
from keras import ops

from keras_transformer.generation.beam import BeamSearch
from keras_transformer.generation.choose import Greedy, Sampling, uniform
from keras_transformer.generation.constraints import Constraints
from keras_transformer.generation.loop import search
from keras_transformer.generation.top import top_k
from tests import oracle

BEGIN, END, WORDS = 1, 2, (3, 4, 5)
VOCABULARY = 6
LIMIT = 4


class Recurrent:
    """A little recurrent model of B sentences: whatever was written before matters.

    The state is a tree, of which every part must follow its hypothesis.
    """

    def __init__(self, batch_size=2, seed=5, end=0.0):
        random = np.random.default_rng(seed)
        self.initial = random.normal(size=(batch_size, 4)).astype("float32")
        self.weights = random.normal(size=(4, 4)).astype("float32")
        self.embedding = random.normal(size=(VOCABULARY, 4)).astype("float32")
        self.output = random.normal(size=(8, VOCABULARY)).astype("float32")
        self.bias = np.array([0, 0, end, 0, 0, 0], "float32")
        self.memory = random.normal(size=(4, 3)).astype("float32")

    def start(self, hypotheses=1):
        first = np.repeat(self.initial, hypotheses, axis=0)
        return {"now": ops.array(first), "before": [ops.array(first * 0)]}

    def step(self, ids, state, index):
        now = ops.tanh(ops.matmul(state["now"], self.weights) + ops.take(self.embedding, ids, 0))
        both = ops.concatenate([now, state["before"][0]], axis=-1)
        return ops.matmul(both, self.output) + self.bias, {"now": now, "before": [state["now"]]}

    def step_and_look(self, ids, state, index):
        logits, state = self.step(ids, state, index)
        weights = ops.softmax(ops.matmul(state["now"], self.memory), axis=-1)  # [R, S]
        return logits, state, ops.reshape(weights, (len(self.initial), -1, 3))

    def follow(self, sentence, target):
        """The log-probability and the attention of each token of a target, in NumPy."""
        now, before, scores, looks = self.initial[sentence], np.zeros(4), [], []
        for last, token in itertools.pairwise([BEGIN, *target]):
            new = np.tanh(now @ self.weights + self.embedding[last])
            logits = np.concatenate([new, before]) @ self.output + self.bias
            scores.append(logits[token] - np.log(np.sum(np.exp(logits))))
            weights = np.exp(new @ self.memory)
            looks.append(weights / weights.sum())
            now, before = new, now
        return np.array(scores), np.array(looks)


def every_target(limit=LIMIT):
    """All that can be written: ended by the end id, or cut at the limit."""
    for length in range(limit):
        for words in itertools.product(WORDS, repeat=length):
            yield [*words, END]
    yield from map(list, itertools.product(WORDS, repeat=limit))


def exhaustive(model, sentence, alpha, offset=5, coverage=0.0):
    """Every target with its score, best first."""
    scored = []
    for target in every_target():
        scores, looks = model.follow(sentence, target)
        score = scores.sum() / ((offset + len(target)) / (offset + 1)) ** alpha
        score += coverage * np.log(np.minimum(looks.sum(axis=0), 1)).sum()
        scored.append((score, target))
    return sorted(scored, reverse=True)


def limits(*each):
    return ops.array(each, "int32")


def only_words(**options):
    return Constraints(END, suppressed=(0, BEGIN), **options)


def run_beam(model, beams, step=None, limit=LIMIT, **options):
    strategy = BeamSearch(
        limits(*[limit] * len(model.initial)),
        limit,
        END,
        beams,
        constraints=only_words(),
        **options,
    )
    found = search(step or model.step, model.start(beams), strategy, BEGIN)
    return {name: oracle.array(value) for name, value in found.items()}


def tokens(row):
    return [int(one) for one in row if one]


@pytest.mark.parametrize("end", [0.0, 2.0])
@pytest.mark.parametrize(("alpha", "offset"), [(0.0, 5), (0.6, 5), (1.0, 0), (2.0, 0), (-0.5, 5)])
def test_a_beam_of_full_width_finds_what_an_exhaustive_search_finds(alpha, offset, end):
    model = Recurrent(end=end)
    found = run_beam(model, beams=81, n_best=6, alpha=alpha, offset=offset)
    for sentence in range(2):
        expected = exhaustive(model, sentence, alpha, offset)[:6]
        assert [tokens(row) for row in found["ids"][sentence]] == [target for _, target in expected]
        np.testing.assert_allclose(
            found["scores"][sentence], [score for score, _ in expected], rtol=1e-4
        )


def test_the_coverage_penalty_counts_what_was_not_looked_at():
    model = Recurrent()
    keep = ops.ones((2, 3), "bool")
    found = run_beam(
        model, 81, model.step_and_look, n_best=5, alpha=0.6, coverage=0.7, memory_keep=keep
    )
    without = run_beam(model, 81, n_best=5, alpha=0.6)
    assert not np.array_equal(found["ids"], without["ids"])
    for sentence in range(2):
        expected = exhaustive(model, sentence, 0.6, coverage=0.7)[:5]
        assert [tokens(row) for row in found["ids"][sentence]] == [target for _, target in expected]
        _, looks = model.follow(sentence, expected[0][1])
        np.testing.assert_allclose(
            found["alignment"][sentence, 0, : len(looks)], looks, rtol=1e-4, atol=1e-6
        )


def test_a_place_of_padding_need_not_be_covered():
    model = Recurrent(batch_size=1)
    seen, padded = np.array([[1, 1, 1]], bool), np.array([[1, 1, 0]], bool)
    scores = {
        name: run_beam(
            model, 3, model.step_and_look, limit=1, coverage=1.0, memory_keep=ops.array(keep)
        )
        for name, keep in (("seen", seen), ("padded", padded))
    }
    assert scores["padded"]["scores"][0, 0] > scores["seen"]["scores"][0, 0] + 0.1


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_stopping_early_changes_nothing(alpha, monkeypatch):
    found = [run_beam(Recurrent(6, seed, 1.0), 3, limit=12, n_best=2, alpha=alpha)
             for seed in range(5)]  # fmt: skip
    monkeypatch.setattr(BeamSearch, "_is_settled", lambda self, scores, *_: scores[:, 0] > 1)
    for seed, early in enumerate(found):
        late = run_beam(Recurrent(6, seed, 1.0), 3, limit=12, n_best=2, alpha=alpha)
        np.testing.assert_array_equal(early["ids"], late["ids"])
        np.testing.assert_allclose(early["scores"], late["scores"])


def test_the_search_ends_when_nothing_better_can_come():
    """A model that ends at once, surely: two steps settle it."""
    steps = []
    model = Recurrent(end=30.0)

    class Counted(BeamSearch):
        def is_done(self, progress):
            steps.append(1)
            return super().is_done(progress)

    strategy = Counted(limits(64, 64), 64, END, 4, alpha=0.6, constraints=only_words())
    progress, index, state, last = (
        strategy.start(),
        0,
        model.start(4),
        ops.full((8,), BEGIN, "int32"),
    )
    while not strategy.is_done(progress):
        logits, state = model.step(last, state, index)
        last, _, progress = strategy.choose(progress, index, logits)
        index += 1
    assert len(steps) == 2


def test_a_beam_of_one_is_greedy():
    model = Recurrent(4, end=0.5)
    beam = run_beam(model, 1, limit=9)
    strategy = Greedy(limits(9, 9, 9, 9), 9, END, only_words(), scores=True)
    greedy = search(model.step, model.start(), strategy, BEGIN)
    np.testing.assert_array_equal(beam["ids"], oracle.array(greedy["ids"]))
    np.testing.assert_allclose(
        beam["token_scores"], oracle.array(greedy["token_scores"]), atol=1e-5
    )


def test_scores_of_tokens_are_those_of_the_model():
    model = Recurrent(3)
    found = run_beam(model, 4, limit=7, n_best=4, alpha=0.6)
    for sentence, hypothesis in itertools.product(range(3), range(4)):
        target = tokens(found["ids"][sentence, hypothesis])
        scores, _ = model.follow(sentence, target)
        np.testing.assert_allclose(
            found["token_scores"][sentence, hypothesis, : len(target)], scores, rtol=1e-4, atol=1e-5
        )
        penalty = ((5 + len(target)) / 6) ** 0.6
        score = found["scores"][sentence, hypothesis]
        np.testing.assert_allclose(score, scores.sum() / penalty, rtol=1e-4)


@pytest.mark.parametrize("size", [100, 512, 1000, 1024])
def test_the_best_of_very_many_are_found(size):
    scores = np.random.default_rng(size).integers(0, 400, (3, size)).astype("float32")
    found, places = map(oracle.array, top_k(ops.array(scores), 4, chunk=16))
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :4]
    np.testing.assert_array_equal(found, np.take_along_axis(scores, expected, axis=1))
    np.testing.assert_array_equal(np.take_along_axis(scores, places.astype(int), axis=1), found)
    assert all(len(set(row)) == 4 for row in places)


@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([3, 1, 0, 2], [2, 1, 3, 0]),  # all stay, in the order of the rows
        ([2, 2, 0, 2], [2, 1, 0, 3]),  # the first of three stays, the others fill up
        ([1, 1, 1, 1], [1, 0, 2, 3]),
    ],
)
def test_a_hypothesis_keeps_its_row_while_it_can(parents, expected):
    strategy = BeamSearch(ops.full((2,), 5, "int32"), 5, 1, beams=4)
    rows = np.array([[0, 1, 2, 3], [4 + parent for parent in parents]], "int32")
    np.testing.assert_array_equal(strategy._stay(ops.array(rows)), [[0, 1, 2, 3], expected])


def test_more_beams_never_have_fewer_hypotheses_than_there_are():
    """With a limit of 1 there are four targets: three words, and the end."""
    found = run_beam(Recurrent(), beams=6, limit=1, n_best=6)
    assert np.isfinite(found["scores"]).sum(axis=1).tolist() == [4, 4]
    assert {tuple(tokens(row)) for row in found["ids"][0, :4]} == {(2,), (3,), (4,), (5,)}


def test_an_empty_sentence_has_one_empty_translation():
    model = Recurrent()
    strategy = BeamSearch(limits(0, 3), 3, END, 2, n_best=2, constraints=only_words())
    found = search(model.step, model.start(2), strategy, BEGIN)
    assert oracle.array(found["ids"])[0].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert oracle.array(found["scores"])[0].tolist() == [0, -np.inf]
    assert oracle.array(found["ids"])[1].any()


def greedy(model, limit=6, step=None, **options):
    strategy = Greedy(limits(*[limit] * len(model.initial)), limit, END, **options)
    found = search(step or model.step, model.start(), strategy, BEGIN)
    return {name: oracle.array(value)[:, 0] for name, value in found.items()}


def test_each_row_ends_with_its_own_end_or_limit_and_the_loop_with_the_last():
    script = ops.array([[5, 2, 7, 7, 7], [6, 7, 8, 2, 7], [6, 6, 6, 6, 6], [5, 5, 5, 5, 5]])

    def step(ids, state, index):
        return ops.one_hot(ops.take(script, index, axis=1), 9), state

    strategy = Greedy(limits(5, 5, 3, 0), 5, END)
    found = search(step, ops.zeros((4,)), strategy, BEGIN)
    assert list(found) == ["ids"]  # no scores were asked for
    assert oracle.array(found["ids"])[:, 0].tolist() == [
        [5, 2, 0, 0, 0], [6, 7, 8, 2, 0], [6, 6, 6, 0, 0], [0, 0, 0, 0, 0],
    ]  # fmt: skip


def test_no_fewer_tokens_than_the_least():
    model = Recurrent(4, end=9.0)
    assert greedy(model)["ids"].tolist() == [[2, 0, 0, 0, 0, 0]] * 4
    ids = greedy(model, constraints=only_words(min_length=3))["ids"]
    assert ((ids != 0).sum(axis=1) == 4).all()
    assert (ids[:, 3] == END).all()


def test_suppressed_tokens_are_not_written():
    model = Recurrent(4)
    common = (
        np.bincount(greedy(model)["ids"].astype(int).ravel(), minlength=VOCABULARY)[3:].argmax() + 3
    )
    ids = greedy(model, constraints=Constraints(END, (0, BEGIN, int(common))))["ids"]
    assert not (ids == common).any()
    assert not (ids == BEGIN).any()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_is_written_twice(size):
    def ngrams(row):
        return [tuple(row[i : i + size]) for i in range(len(row) - size + 1)]

    model = Recurrent(8, end=-9.0)
    free = [ngrams(tokens(row)) for row in greedy(model, limit=12, constraints=only_words())["ids"]]
    assert any(len(set(row)) < len(row) for row in free)
    constraints = only_words(no_repeat_ngram=size)
    for row in greedy(model, limit=12, constraints=constraints)["ids"]:
        written = ngrams(tokens(row))
        assert len(set(written)) == len(written)


def test_a_repetition_penalty_makes_what_was_written_less_likely():
    logits = ops.array([[0.0, 0, 0, 3, -1, 2]])
    ids = ops.array([[3, 4, 5, 0]])  # the 5 is not written yet
    penalised = only_words(repetition_penalty=2.0).all(logits, ids, 2)
    np.testing.assert_allclose(oracle.array(penalised)[0, 2:], [0, 1.5, -2, 2])


@pytest.mark.parametrize("beams", [1, 3])
def test_a_prefix_is_written_first_and_counts(beams):
    model = Recurrent(3)
    prefix = ops.array([[5, 5, 3], [4, 0, 0], [0, 0, 0]])
    constraints = only_words(prefix=prefix, no_repeat_ngram=1)
    strategy = BeamSearch(
        limits(6, 6, 6), 6, END, beams, n_best=min(beams, 2), constraints=constraints
    )
    found = search(model.step, model.start(beams), strategy, BEGIN)
    ids = oracle.array(found["ids"])
    assert (ids[0, :, :3] == [5, 5, 3]).all()
    assert (ids[1, :, 0] == 4).all()
    scores, _ = model.follow(0, tokens(ids[0, 0]))
    np.testing.assert_allclose(oracle.array(found["scores"])[0, 0], scores.sum(), rtol=1e-4)
    alone = search(
        model.step,
        model.start(beams),
        BeamSearch(limits(6, 6, 6), 6, END, beams, constraints=only_words(no_repeat_ngram=1)),
        BEGIN,
    )
    np.testing.assert_array_equal(ids[2, 0], oracle.array(alone["ids"])[2, 0])


def sample(logits, seeds, temperature=1.0, top_k=0, top_p=1.0):
    """One draw for each seed."""
    rows = len(seeds)
    strategy = Sampling(
        ops.ones((rows,), "int32"), 1, END,
        temperature=ops.full((rows,), temperature), top_k=ops.full((rows,), top_k, "int32"),
        top_p=ops.full((rows,), top_p), seed=ops.array(seeds, "int32"),
    )  # fmt: skip
    logits = ops.tile(ops.array([logits], "float32"), (rows, 1))
    return oracle.array(strategy.pick(logits, ops.zeros((rows, 1), "int32"), 0))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.1, 0.2, 0.4, 0.3]),
        ({"temperature": 0.5}, np.array([0.01, 0.04, 0.16, 0.09]) / 0.3),
        ({"temperature": 0.0}, [0, 0, 1, 0]),
        ({"top_k": 2}, np.array([0, 0, 0.4, 0.3]) / 0.7),
        ({"top_p": 0.75}, np.array([0, 0.2, 0.4, 0.3]) / 0.9),
        ({"top_p": 0.69}, np.array([0, 0, 0.4, 0.3]) / 0.7),
        ({"top_p": 1e-6}, [0, 0, 1, 0]),
        ({"top_k": 3, "top_p": 0.5}, np.array([0, 0, 0.4, 0.3]) / 0.7),
    ],
)
def test_tokens_are_drawn_as_often_as_they_should_be(options, expected):
    drawn = sample(np.log([0.1, 0.2, 0.4, 0.3]), range(20_000), **options).astype(int)
    share = np.bincount(drawn, minlength=4) / len(drawn)
    np.testing.assert_allclose(share, expected, atol=0.012)
    assert (share[np.array(expected) == 0] == 0).all()


def test_no_warmth_makes_what_is_forbidden_likely():
    rows = 500
    everywhere = ops.ones((rows,), "int32")
    strategy = Sampling(
        everywhere, 1, END, Constraints(END, (0, BEGIN)),
        temperature=ops.full((rows,), 1e30), top_k=0 * everywhere,
        top_p=ops.ones((rows,)), seed=ops.arange(rows, dtype="int32"),
    )  # fmt: skip
    drawn = strategy.pick(ops.zeros((rows, VOCABULARY)), ops.zeros((rows, 1), "int32"), 0)
    assert set(oracle.array(drawn).tolist()) == {2, 3, 4, 5}


def test_a_draw_depends_on_its_own_seed_alone():
    logits = np.zeros(50)
    together = sample(logits, [7, 8, 9])
    assert together.tolist() == [sample(logits, [seed])[0] for seed in (7, 8, 9)]
    assert len(set(sample(logits, range(200)).tolist())) > 40


def test_random_numbers_are_even_and_unlike_their_neighbours():
    seeds = ops.arange(1000, dtype="int32")
    numbers = np.stack([oracle.array(uniform(seeds, index)) for index in range(50)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    np.testing.assert_allclose(np.histogram(numbers, 10, (0, 1))[0] / numbers.size, 0.1, atol=5e-3)
    for a, b in ((numbers[1:], numbers[:-1]), (numbers[:, 1:], numbers[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02
