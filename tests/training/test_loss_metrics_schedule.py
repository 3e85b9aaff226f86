import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import oracle

LABELS = np.array([[3, 5, 0], [1, 0, 0]], "int32")


@pytest.fixture
def logits(normal):
    return normal(2, 3, 7) * 3


def log_probabilities(logits):
    logits = logits.astype("float64")
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_the_loss_is_the_cross_entropy_with_smoothed_one_hot_labels(smoothing, logits):
    one_hot = np.eye(7)[LABELS] * (1 - smoothing) + smoothing / 7
    expected = -(one_hot * log_probabilities(logits)).sum(-1)[LABELS > 0].mean()
    loss = kt.LabelSmoothedCrossEntropy(smoothing)(LABELS, logits)
    assert float(loss) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_its_gradient_is_what_the_softmax_has_too_much(smoothing, logits):
    """The logits are a layer's weights, which plain gradient descent changes by the gradient."""
    layer = keras.layers.Embedding(6, 7)
    model = keras.Sequential([keras.Input((3,), dtype="int32"), layer])
    layer.embeddings.assign(logits.reshape(6, 7))
    model.compile(keras.optimizers.SGD(1.0), kt.LabelSmoothedCrossEntropy(smoothing))
    model.train_on_batch(np.arange(6, dtype="int32").reshape(2, 3), LABELS)
    one_hot = np.eye(7)[LABELS] * (1 - smoothing) + smoothing / 7
    keep = (LABELS > 0)[..., None]
    expected = (np.exp(log_probabilities(logits)) - one_hot) * keep / keep.sum()
    gradient = logits.reshape(6, 7) - oracle.array(layer.embeddings)
    np.testing.assert_allclose(gradient, expected.reshape(6, 7), atol=1e-6)


def test_more_padding_changes_nothing(logits):
    loss = kt.LabelSmoothedCrossEntropy(0.1)
    wider = np.pad(LABELS, ((0, 0), (0, 4))), np.pad(logits, ((0, 0), (0, 4), (0, 0)))
    assert float(loss(*wider)) == pytest.approx(float(loss(LABELS, logits)), abs=1e-6)


def test_a_batch_of_nothing_but_padding_has_no_loss(logits):
    assert float(kt.LabelSmoothedCrossEntropy(0.1)(LABELS * 0, logits)) == 0


def test_sample_weights_weigh_sentences(logits):
    loss = kt.LabelSmoothedCrossEntropy()
    expected = -log_probabilities(logits)[1, 0, 1]
    for weight in ([[0.0], [1.0]], [0.0, 1.0]):
        weight = np.array(weight, "float32")
        assert float(loss(LABELS, logits, weight)) == pytest.approx(expected, abs=1e-5)
        perplexity = kt.Perplexity()
        perplexity.update_state(LABELS, logits, weight)
        assert float(perplexity.result()) == pytest.approx(np.exp(expected), rel=1e-4)


def test_huge_logits_of_bfloat16_give_a_finite_loss():
    logits = keras.ops.cast(np.full((2, 3, 7), 3e4, "float32"), "bfloat16")
    assert float(kt.LabelSmoothedCrossEntropy(0.1)(LABELS, logits)) == pytest.approx(
        np.log(7), 1e-3
    )


def test_accuracy_counts_tokens_and_not_padding():
    logits = np.zeros((2, 3, 7), "float32")
    logits[0, 0, 3] = 1  # right
    logits[0, 1, 2] = 1  # wrong
    logits[1, 0, 1] = 1  # right; the padded places would be right as well
    accuracy = kt.TokenAccuracy()
    accuracy.update_state(LABELS, logits)
    assert float(accuracy.result()) == pytest.approx(2 / 3)


def test_perplexity_is_over_the_tokens_of_all_batches(logits):
    perplexity = kt.Perplexity()
    perplexity.update_state(LABELS[:1], logits[:1])
    perplexity.update_state(LABELS[1:], logits[1:])
    mean = -np.mean(
        [log_probabilities(logits)[place] for place in ((0, 0, 3), (0, 1, 5), (1, 0, 1))]
    )
    assert float(perplexity.result()) == pytest.approx(np.exp(mean), rel=1e-5)


def test_the_schedule_is_the_papers():
    schedule = kt.WarmupSchedule.of_paper(d_model=512, warmup_steps=4000)
    for step in (1, 100, 4000, 4001, 100_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert float(schedule(step - 1)) == pytest.approx(expected, rel=1e-5)


def test_the_peak_is_reached_after_the_warm_up():
    schedule = kt.WarmupSchedule(peak_learning_rate=5e-3, warmup_steps=2000)
    rates = [float(schedule(step)) for step in range(0, 8000, 10)] + [float(schedule(1999))]
    assert max(rates) == pytest.approx(5e-3)
    assert float(schedule(7999)) == pytest.approx(2.5e-3, rel=1e-3)


def test_a_cool_down_goes_to_zero_in_a_line_with_the_last_update():
    plain = kt.WarmupSchedule(1e-3, 10)
    cooled = kt.WarmupSchedule(1e-3, 10, cooldown_steps=20, total_steps=100)
    share = [float(cooled(step)) / float(plain(step)) for step in (0, 50, 80, 90, 99, 100)]
    assert share == pytest.approx([1, 1, 1, 0.5, 0.05, 0], abs=1e-5)
    with pytest.raises(ValueError, match="give total_steps as well"):
        kt.WarmupSchedule(1e-3, 10, cooldown_steps=20)


def test_the_end_of_a_cool_down_may_change_while_a_model_trains():
    schedule = kt.WarmupSchedule(0.1, 1, cooldown_steps=10, total_steps=1000)
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(schedule), "mse")
    weights = []
    for _ in range(3):
        model.train_on_batch(np.ones((1, 1)), np.full((1, 1), 5.0))
        weights.append(float(model.get_weights()[0][0, 0]))
        if len(weights) == 2:
            schedule.total_steps.assign(2)  # the two that were
    assert weights[0] != weights[1] == weights[2]


@pytest.mark.parametrize(
    "thing",
    [
        kt.LabelSmoothedCrossEntropy(0.2),
        kt.WarmupSchedule(1e-3, 10, cooldown_steps=2, total_steps=20),
        kt.TokenAccuracy(),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_what_compile_takes_can_be_saved(thing):
    config = keras.saving.serialize_keras_object(thing)
    twin = keras.saving.deserialize_keras_object(config)
    assert twin.get_config() == thing.get_config()


def test_gradients_reach_every_weight_of_the_model():
    model = kt.Transformer(
        kt.ModelConfig(
            8, d_model=16, d_ff=16, num_heads=2, encoder_layers=2, decoder_layers=2,
            cross_attention="mix", positions="learned", norm="pre",
        )
    )  # fmt: skip
    model.compile(keras.optimizers.SGD(1.0), kt.LabelSmoothedCrossEntropy(0.1))
    ids = np.array([[4, 5, 6], [7, 5, 0]], "int32")
    before = [oracle.array(weight) for weight in model.weights]
    model.train_on_batch({"source": ids, "target": ids}, ids)
    for was, weight in zip(before, model.weights, strict=True):
        change = np.abs(oracle.array(weight) - was)
        assert np.isfinite(change).all(), weight.path
        assert change.max() > 0, weight.path
