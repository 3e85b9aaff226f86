"""What is said to approximate something does so, and what is said to find something finds it."""

from functools import partial
from itertools import pairwise

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import SelfAttention
from keras_transformer.attention import MECHANISMS
from keras_transformer.attention.sinkhorn import sinkhorn
from tests.oracle import array


def error(name, features, exact, query, key, value):
    """The mean error of some draws of random features."""
    errors = []
    for seed in range(8):
        keras.utils.set_random_seed(seed)
        mechanism = MECHANISMS[name](query.shape[1], query.shape[3], features=features)
        output = array(mechanism(query, key, value))
        errors.append(np.sqrt(np.mean((output - exact) ** 2)))
    return np.mean(errors)


@pytest.mark.parametrize("name", ["performer", "rfa"])
def test_the_error_of_random_features_falls_with_the_root_of_their_number(name, normal):
    query, key, value = normal(1, 2, 64, 16), normal(1, 2, 64, 16), normal(1, 2, 64, 16)
    if name == "rfa":  # it approximates the softmax of q'k at unit length
        query, key = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key))
        exact = MECHANISMS["dot"](2, 16, scale=1.0)(query, key, value)
    else:  # short enough that the estimate of exp(q'k), whose variance grows with it, is in range
        query, key = 0.5 * query, 0.5 * key
        exact = MECHANISMS["dot"](2, 16)(query, key, value)
    counts = [32, 128, 512, 2048]
    errors = [error(name, count, array(exact), query, key, value) for count in counts]
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert -0.65 < slope < -0.35, errors  # the theory says -1/2
    assert errors[-1] < 0.05 * array(exact).std() + 0.02


@pytest.mark.parametrize("alike", [True, False])
def test_rfa_sharpens_by_its_learned_scale(alike, normal):
    """softmax((sigma q)'(sigma k)); where its components differ, of -|sigma * (q - k)|^2 / 2."""
    query, key = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in normal(2, 1, 2, 32, 8))
    value = normal(1, 2, 32, 8)
    sigma = np.array([[1.6], [0.7]]) * np.ones((2, 8)) if alike else np.abs(normal(2, 8)) + 0.5
    near, far = (x * sigma[:, None] for x in (query, key))
    scores = near @ far.swapaxes(-1, -2)
    if not alike:
        scores = scores - (far**2).sum(-1)[:, :, None] / 2  # |q|^2 is the same for all keys
    weights = np.exp(scores)
    exact = weights / weights.sum(-1, keepdims=True) @ value

    def error(sigma):
        mechanism = MECHANISMS["rfa"](2, 8, features=8192)
        mechanism.build(query.shape, key.shape, value.shape)
        mechanism.feature_map.sigma.assign(sigma)
        return np.sqrt(np.mean((array(mechanism(query, key, value)) - exact) ** 2))

    assert error(sigma) < 0.03
    assert error(np.ones((2, 8))) > 0.05


def test_rfa_stays_in_range_where_its_weights_sum_to_zero():
    """Of two keys with the weights cos(pi / 3) = 1/2 and cos(2 pi / 3) = -1/2."""
    mechanism = MECHANISMS["rfa"](1, 2, features=1, dtype="mixed_float16")
    query, key, value = np.array(
        [[[1, 0], [1, 0]], [[8**0.5, 1], [5**0.5, 2]], [[1, 1], [-1, -1]]], "float16"
    )[:, None, None]
    mechanism.build(query.shape, key.shape, value.shape)
    mechanism.feature_map.projection.assign(np.array([[[0.0], [np.pi]]]))
    output = array(mechanism(query, key, value)).astype("float32")
    assert (np.abs(output) < 101).all()


def test_orthogonal_features_err_less_than_independent_ones(normal, monkeypatch):
    from keras_transformer.attention.features import PositiveFeatures, RandomFeatures

    query, key, value = normal(1, 1, 64, 32), normal(1, 1, 64, 32), normal(1, 1, 64, 32)
    exact = array(MECHANISMS["dot"](1, 32)(query, key, value))
    orthogonal = error("performer", 32, exact, query, key, value)
    for name in ("normals", "form"):
        monkeypatch.setattr(PositiveFeatures, name, getattr(RandomFeatures, name))
    assert orthogonal < error("performer", 32, exact, query, key, value)


def test_features_are_drawn_anew_after_so_many_passes_of_training(normal):
    mechanism = MECHANISMS["performer"](1, 4, features=8, redraw=2)
    x = normal(1, 1, 5, 4)
    mechanism(x, x, x)
    drawn = [array(mechanism.feature_map.projection)]
    for _ in range(4):
        mechanism(x, x, x, training=True)
        drawn.append(array(mechanism.feature_map.projection))
    same = [bool((one == other).all()) for one, other in pairwise(drawn)]
    assert same == [True, False, True, False]
    gram = drawn[-1][0, :, :4].T @ drawn[-1][0, :, :4]
    np.testing.assert_allclose(gram - np.diag(np.diag(gram)), 0, atol=1e-4)  # orthogonal


def test_lsh_finds_the_largest_weights(normal):
    """Of 512 places, each with one other very near to it, four rounds find nearly all of those."""
    half = normal(1, 1, 256, 32)
    x = np.concatenate([half, half + 0.15 * normal(1, 1, 256, 32)], axis=2)
    mechanism = MECHANISMS["lsh"](1, 32, window=64, buckets=16, rounds=4)
    _, scores = mechanism(x, x, x, return_attention_scores=True)
    scores = array(scores)[0, 0]
    partner = (np.arange(512) + 256) % 512
    recall = np.mean(scores[np.arange(512), partner] > 0)
    assert recall > 0.95
    assert np.mean(scores > 0) < 0.3  # and not by looking at everything
    one_round = MECHANISMS["lsh"](1, 32, window=64, buckets=16, rounds=1)
    _, scores = one_round(x, x, x, return_attention_scores=True)
    assert np.mean(array(scores)[0, 0][np.arange(512), partner] > 0) < recall


def test_lsh_finds_them_far_away_if_its_buckets_are_no_larger_than_the_window(normal):
    half = normal(1, 1, 2048, 32)
    x = np.concatenate([half, half + 0.15 * normal(1, 1, 2048, 32)], axis=2)

    def recall(buckets):
        mechanism = MECHANISMS["lsh"](1, 32, window=64, buckets=buckets, rounds=4)
        scores = array(mechanism(x, x, x, return_attention_scores=True)[1])[0, 0]
        return np.mean(scores[np.arange(4096), (np.arange(4096) + 2048) % 4096] > 0)

    assert recall(128) > 0.9
    assert recall(16) < 0.5  # 256 places in a bucket, of which 65 are seen


def test_lsh_that_sees_its_whole_buckets_is_the_softmax_over_what_it_sees(normal):
    x, value = normal(1, 1, 40, 8), normal(1, 1, 40, 8)
    mechanism = MECHANISMS["lsh"](1, 8, window=80, buckets=4, rounds=3)
    output, scores = mechanism(x, x, value, return_attention_scores=True)
    seen = array(scores)[0, 0] > 1e-9
    unit = x[0, 0] / np.linalg.norm(x[0, 0], axis=-1, keepdims=True)
    raw = x[0, 0] @ unit.T / np.sqrt(8)
    raw = np.where(np.eye(40, dtype=bool), -1e4, raw)
    weights = np.where(seen, np.exp(raw), 0)
    expected = weights / weights.sum(-1, keepdims=True) @ value[0, 0]
    np.testing.assert_allclose(array(output)[0, 0], expected, atol=1e-4)


def test_clusters_follow_the_data(normal):
    middles = np.eye(8, dtype="float32")[:4]
    x = np.repeat(middles, 16, axis=0)[None, None] + 0.05 * normal(1, 1, 64, 8)
    mechanism = MECHANISMS["kmeans"](1, 8, clusters=4, momentum=0.5)
    mechanism(x, x, x)
    mechanism.centroids.assign(middles[None] + 0.5 * normal(1, 4, 8))
    for _ in range(20):
        mechanism(x, x, x, training=True)
    near = array(mechanism.centroids)[0] @ middles.T
    np.testing.assert_allclose(near.max(axis=0), 1, atol=0.01)
    before = array(mechanism.centroids)
    mechanism(x, x, x)
    np.testing.assert_array_equal(array(mechanism.centroids), before)  # only while training


@pytest.mark.parametrize("scores", [False, True])
def test_clusters_that_move_do_not_tell_of_places_to_come(scores, normal):
    """With a momentum of 0 each batch moves them all the way."""
    mechanism = MECHANISMS["kmeans"](1, 8, causal=True, clusters=4, momentum=0.0)
    x = normal(1, 1, 32, 8)
    other = x.copy()
    other[:, :, 16:] = normal(1, 1, 16, 8)
    mechanism.build(x.shape, x.shape, x.shape)
    before = array(mechanism.centroids)

    def attend(x):
        mechanism.centroids.assign(before)
        found = mechanism(x, x, x, return_attention_scores=scores, training=True)
        return array(found[1] if scores else found)[:, :, :16]

    np.testing.assert_allclose(attend(x), attend(other), atol=1e-6)
    assert np.abs(array(mechanism.centroids) - before).max() > 0.1


def test_rows_and_columns_of_a_sinkhorn_sorting_sum_to_one(normal):
    valid = np.array([[True] * 6, [True] * 4 + [False] * 2])
    matrix = array(sinkhorn(normal(2, 6, 6), valid))
    for axis in (1, 2):
        np.testing.assert_allclose(matrix.sum(axis), valid, atol=0.01)
    assert (matrix >= 0).all()
    permutation = np.eye(6)[[3, 0, 5, 1, 4, 2]]
    sharp = array(sinkhorn(ops.array(20 * permutation[None], "float32"), valid[:1]))
    np.testing.assert_allclose(sharp[0], permutation, atol=1e-3)


@pytest.mark.parametrize(("training", "tolerance"), [(False, 0.001), (True, 0.1)])
def test_blocks_are_sorted_one_to_one_however_alike_their_tokens_are(training, tolerance, normal):
    """Of 16 blocks of 64 tokens that share a fifth of their variance; the noise takes longer."""
    query, key = 0.2**0.5 * normal(2, 4, 2, 16, 1, 64) + 0.8**0.5 * normal(2, 4, 2, 16, 64, 64)
    mechanism = MECHANISMS["sinkhorn"](2, 64, size=64)
    mechanism.build(*[(4, 2, 16 * 64, 64)] * 3)
    if training:
        mechanism.noise = partial(mechanism.noise, training=True)
    matrix = array(mechanism.sort(query, key, np.ones((4, 2, 16, 64), bool)))
    np.testing.assert_allclose(matrix.sum(-2), 1, atol=1e-4)
    np.testing.assert_allclose(matrix.sum(-1), 1, atol=tolerance)
    assert 0.2 < matrix.max(-1).mean() < 0.8  # neither all alike nor hard from the beginning


def test_the_weights_of_sorted_blocks_sum_to_one(normal):
    x, keep = normal(2, 2, 24, 8), np.arange(24)[None] < np.array([[24], [14]])
    mechanism = MECHANISMS["sinkhorn"](2, 8, size=4)
    _, scores = mechanism(x, x, x, keep=keep, return_attention_scores=True)
    np.testing.assert_allclose(array(scores)[0].sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(array(scores)[1, :, :14].sum(-1), 1, atol=1e-5)


def test_blocks_that_belong_together_are_sorted_together(normal):
    """Block i asks for block i + 1, and sees it."""
    size, count, width = 4, 6, 16
    names = np.eye(count, width, dtype="float32") * 8
    key = np.repeat(names, size, axis=0)[None, None]
    query = np.repeat(np.roll(names, -1, axis=0), size, axis=0)[None, None]
    mechanism = MECHANISMS["sinkhorn"](1, width, size=size)
    mechanism(query, key, key)
    mechanism.matrix.assign(np.eye(width)[None])
    _, scores = mechanism(query, key, key, return_attention_scores=True)
    seen = array(scores)[0, 0].reshape(count, size, count, size).sum((1, 3)) > 0.1
    np.testing.assert_array_equal(
        seen | np.eye(count, dtype=bool), np.eye(count) + np.roll(np.eye(count), 1, axis=1) > 0
    )


def test_monotonic_attention_is_a_probability_however_long_the_memory(normal):
    mechanism = MECHANISMS["monotonic"](1, 8)
    query, memory = normal(1, 1, 60, 8), normal(1, 1, 300, 8)
    _, scores = mechanism(query, memory, memory, return_attention_scores=True)
    totals = array(scores)[0, 0].sum(-1)
    assert (totals < 1 + 1e-4).all()
    assert totals[0] > 0.99
    _, scores = mechanism(query, memory[:, :, :3], memory[:, :, :3], return_attention_scores=True)
    assert array(scores)[0, 0].sum(-1)[-1] < 0.5  # the end has been passed


@pytest.mark.parametrize("size", [1.0, 5.0])
def test_performer_keeps_to_the_range_of_the_values_for_large_keys(size, normal):
    mechanism = MECHANISMS["performer"](1, 64)
    query, key, value = normal(1, 1, 32, 64), size * normal(1, 1, 32, 64), normal(1, 1, 32, 64)
    output = array(mechanism(query, key, value))
    assert np.isfinite(output).all()
    assert np.abs(output).mean() > 0.1  # a mean of values, and not zero


def test_performer_sees_large_keys_beside_small_padding(normal):
    """Whatever the exponentials of keys that are not looked at, the others are in range."""
    mechanism = MECHANISMS["performer"](1, 64)
    query, value = normal(1, 1, 32, 64), normal(1, 1, 32, 64)
    key = np.concatenate([6 * normal(1, 1, 16, 64), np.zeros((1, 1, 16, 64), "float32")], axis=2)
    keep = np.arange(32)[None] < 16
    output = array(mechanism(query, key, value, keep=keep))
    alone = mechanism(query, key[:, :, :16], value[:, :, :16])
    np.testing.assert_allclose(output, array(alone), atol=1e-4)
    assert np.abs(output).mean() > 0.1


def test_causal_performer_sees_the_first_key_if_it_is_not_too_large(normal):
    mechanism = MECHANISMS["performer"](1, 64, causal=True)
    query, key, value = normal(1, 1, 8, 64), 2 * normal(1, 1, 8, 64), normal(1, 1, 8, 64)
    output = array(mechanism(query, key, value))
    np.testing.assert_allclose(output[0, 0, 0], value[0, 0, 0], rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "weight"), [("performer(redraw=1)", "projection"), ("kmeans", "centroids")]
)
def test_what_follows_the_data_or_is_drawn_anew_does_so_in_fit(name, weight, normal):
    x = keras.Input((8, 16))
    model = keras.Model(x, SelfAttention(16, 2, heads=name)(x))
    model.compile("sgd", "mse")

    def now():
        (found,) = [each for each in model.weights if each.name == weight]
        return array(found)

    before, data = now(), normal(4, 8, 16)
    model.predict(data, verbose=0)
    np.testing.assert_array_equal(now(), before)
    model.fit(data, data, verbose=0)
    assert np.abs(now() - before).max() > 0


def test_biases_of_far_places_are_those_of_the_papers(normal):
    """T5: logarithmic buckets up to 128, computed by hand; Shaw: clipped at 16."""
    query = normal(1, 1, 1, 8)
    t5 = MECHANISMS["dot"](1, 8, bias="t5").bias
    distances = np.array([0, 7, 8, 12, 20, 40, 100, 1000, -1, -40, -1000], "int32")
    expected = [0, 16 + 7, 16 + 8, 16 + 9, 16 + 10, 16 + 12, 16 + 15, 16 + 15, 1, 12, 15]
    assert array(t5.buckets(distances)).tolist() == expected
    causal = MECHANISMS["dot"](1, 8, causal=True, bias="t5").bias
    assert array(causal.buckets(np.array([0, -15, -20, -100, -1000], "int32"))).tolist() == [
        0, 15, 17, 30, 31,
    ]  # fmt: skip
    shaw = MECHANISMS["dot"](1, 8, bias="shaw").bias
    shaw.build(None)
    far = array(shaw.of_distances(query, np.array([15, 16, 17, 200, -17, -200], "int32")))[0, 0, 0]
    assert far[1] == far[2] == far[3] != far[0]
    assert far[4] == far[5] != far[3]


@pytest.mark.parametrize("name", ["general", "additive", "mlp"])
def test_heads_begin_with_weights_of_their_own(name):
    mechanism = MECHANISMS[name](3, 8)
    mechanism.build(*[(None, 3, None, 8)] * 3)
    for weight in mechanism.trainable_weights:
        heads = array(weight)
        assert not np.abs(heads).any() or np.abs(heads[0] - heads[1]).max() > 0.01, weight.path


def test_a_window_longer_than_the_sentence_sees_all_of_it(normal):
    query, key, value = normal(1, 2, 5, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 4)
    expected = array(MECHANISMS["dot"](2, 4)(query, key, value))
    for name, options in (("local", dict(window=1000)), ("block", dict(size=1000))):
        found = array(MECHANISMS[name](2, 4, **options)(query, key, value))
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["local", "block"])
def test_many_large_values_are_in_range_in_half_precision(name):
    """A mean of 1000 values of 100, whose sum float16 has no number for."""
    options = dict(window=2000) if name == "local" else dict(size=1000)
    mechanism = MECHANISMS[name](1, 4, dtype="mixed_float16", **options)
    query, value = np.zeros((1, 1, 1000, 4), "float16"), np.full((1, 1, 1000, 4), 100, "float16")
    np.testing.assert_allclose(array(mechanism(query, query, value)), 100, rtol=1e-2)


def test_monotonic_attention_moves_forward_only(normal):
    mechanism = MECHANISMS["monotonic"](1, 8)
    query, memory = normal(1, 1, 12, 8), normal(1, 1, 20, 8)
    _, scores = mechanism(query, 3 * memory, memory, return_attention_scores=True)
    scores = array(scores)[0, 0]
    behind = scores.cumsum(-1)  # the probability of not having gone beyond a place
    assert (np.diff(behind, axis=0) < 1e-5).all()
    assert (scores >= 0).all()
    assert (scores.sum(-1) < 1 + 1e-5).all()
