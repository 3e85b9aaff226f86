"""What a run minimises: the loss without whole logits, and each method by what it must do."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.training.guidance import alignment_loss, diagonal_loss
from keras_transformer.training.objective import _divergence
from keras_transformer.training.projected_loss import (
    projected_best,
    projected_cross_entropy,
)
from keras_transformer.training.target_input import (
    gold_probability,
    mix_in_passes,
    mix_in_sequence,
)
from tests import oracle

P, D, V = 21, 6, 11  # not a multiple of the number of chunks


def model(**fields):
    sizes = dict(d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0)
    return kt.Transformer(kt.ModelConfig(V, **{**sizes, **fields}))


def batch(seed=1, size=5):
    random = np.random.default_rng(seed)
    source, labels = (random.integers(4, V, (size, 6)).astype("int32") for _ in range(2))
    labels[0, 3:] = 0
    source[1, 4:] = 0
    target = np.pad(labels, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    target[0, 4:] = 0
    return {"source": source, "target": target, "labels": labels}


def gradients(function, *values):
    """The value of a function of variables, and its gradients by plain gradient descent."""
    variables = [keras.Variable(value) for value in values]

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.weights_given = variables
            self.built = True

        def call(self, inputs):
            return function(*variables)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return y_pred

    trained = Model()
    trained.compile(keras.optimizers.SGD(1.0))
    loss = trained.train_on_batch(np.zeros((1, 1)))
    return float(loss), [
        before - oracle.array(after) for before, after in zip(values, variables, strict=True)
    ]


@pytest.fixture
def projected(normal):
    labels = np.random.default_rng(2).integers(0, V, P).astype("int32")
    return normal(P, D), normal(V, D), labels, (labels > 0) / (labels > 0).sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_projected_loss_and_its_gradients_are_those_of_whole_logits(smoothing, projected):
    x, table, labels, weight = projected
    weight = weight.astype("float32")

    def from_logits(x, table):
        loss = kt.LabelSmoothedCrossEntropy(smoothing)
        return 3 * loss(labels[None], ops.matmul(x, ops.transpose(table))[None])

    def from_outputs(x, table):
        return 3 * projected_cross_entropy(x[None], table, labels, weight, smoothing)[0]

    expected, expected_gradients = gradients(from_logits, x, table)
    loss, found = gradients(from_outputs, x, table)
    assert loss == pytest.approx(expected, rel=1e-5)
    for one, other in zip(found, expected_gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_sums_beside_the_loss_are_those_of_the_metrics(projected):
    x, table, labels, weight = projected
    logits = x @ table.T
    labels[:3] = logits[:3].argmax(-1)
    weight = ((labels > 0) / (labels > 0).sum()).astype("float32")
    accuracy, perplexity = kt.TokenAccuracy(), kt.Perplexity()
    for metric in (accuracy, perplexity):
        metric.update_state(labels[None], logits[None])
    _, cross_entropy, right = projected_cross_entropy(x[None], table, labels, weight)
    assert float(right) == pytest.approx(float(accuracy.result()), abs=1e-6)
    assert right > 0
    assert np.exp(float(cross_entropy)) == pytest.approx(float(perplexity.result()), rel=1e-4)
    np.testing.assert_array_equal(projected_best(x, table), logits.argmax(-1))


def test_the_loss_of_two_passes_that_must_agree_is_that_of_its_definition(projected, normal):
    x, table, labels, weight = projected
    other, weight = normal(P, D), weight.astype("float32")

    def by_definition(x, other, table):
        p, q = (ops.softmax(ops.matmul(one, ops.transpose(table))) for one in (x, other))
        label = np.eye(V, dtype="float32")[labels]
        loss = -ops.sum((0.9 * label + 0.1 / V) * (ops.log(p) + ops.log(q)) / 2, axis=-1)
        there = ops.sum(p * (ops.log(p) - ops.log(q)), axis=-1)
        back = ops.sum(q * (ops.log(q) - ops.log(p)), axis=-1)
        return ops.sum(weight * (loss + 1.25 * (there + back)))

    def from_outputs(x, other, table):
        passes = ops.stack([x * 1.0, other * 1.0])  # which Keras cannot do of variables
        return projected_cross_entropy(passes, table, labels, weight, 0.1, agreement=1.25)[0]

    expected, expected_gradients = gradients(by_definition, x, other, table)
    found, found_gradients = gradients(from_outputs, x, other, table)
    assert found == pytest.approx(expected, rel=1e-4)
    for one, another in zip(found_gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(one, another, atol=1e-5)


@pytest.mark.parametrize("fields", [{}, {"tie_output": False}, {"norm": "pre"}])
def test_the_objective_is_the_loss_of_the_model(fields):
    inputs, transformer = batch(), model(**fields)
    objective = kt.Objective(transformer, label_smoothing=0.1)
    objective.compile(keras.optimizers.Adam())
    found = objective.evaluate(inputs, batch_size=5, verbose=0, return_dict=True)
    transformer.compile(
        loss=kt.LabelSmoothedCrossEntropy(0.1), metrics=[kt.TokenAccuracy(), kt.Perplexity()]
    )
    expected = transformer.evaluate(
        {"source": inputs["source"], "target": inputs["target"]},
        inputs["labels"], batch_size=5, verbose=0, return_dict=True,
    )  # fmt: skip
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "methods",
    [
        {},
        {"r_drop": 2.0},
        {"guided_attention": 1.0},
        {"guided_attention": 1.0, "guidance": "alignments"},
    ],
)
@pytest.mark.parametrize("rows", [5, 1])
def test_a_batch_in_parts_is_the_batch(rows, methods):
    inputs = {name: ids[:rows] for name, ids in batch().items()}
    # Of some tokens only, and not of as many in each sentence.
    links = np.eye(6, dtype="bool") & (inputs["target"] > 0)[..., None]
    inputs["alignments"] = links & (np.arange(6) < np.arange(1, rows + 1)[:, None])[..., None]
    trained, results = [], []
    for parts in (1, 3):
        keras.utils.set_random_seed(1)
        objective = kt.Objective(model(), 0.1, kt.MethodsConfig(**methods), parts=parts)
        objective.compile(keras.optimizers.SGD(1.0))
        results.append(objective.train_on_batch(inputs, return_dict=True))
        trained.append(objective.get_weights())
    assert results[1] == pytest.approx(results[0], rel=1e-4)
    for one, other in zip(*trained, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_accuracy_and_loss_in_mixed_precision_are_near_those_in_float32():
    inputs, results = batch(size=64), []
    for policy in ("float32", "mixed_bfloat16"):
        keras.utils.set_random_seed(1)
        transformer = kt.Transformer(
            kt.ModelConfig(
                V, d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0
            ),
            dtype=policy,
        )
        best = ops.argmax(
            transformer({"source": inputs["source"], "target": inputs["target"]}), axis=-1
        )
        if not results:
            labels = np.maximum(oracle.array(best), 1).astype("int32")
        results.append(kt.Objective(transformer, 0.1)({**inputs, "labels": labels}))
    for name in ("loss", "accuracy"):
        one, other = (float(found[name]) for found in results)
        assert one == pytest.approx(other, rel=0.03)


def test_an_objective_is_made_again_from_its_config():
    objective = kt.Objective(model(), 0.1, kt.MethodsConfig(r_drop=2.0))
    again = kt.Objective.from_config(objective.get_config())
    assert again.methods == objective.methods
    assert again.transformer.config == objective.transformer.config


def loss_of(transformer, inputs, **methods):
    objective = kt.Objective(transformer, 0.1, kt.MethodsConfig(**methods))
    return float(objective(inputs, training=True)["loss"])


def test_r_drop_adds_nothing_where_two_passes_are_the_same():
    inputs, transformer = batch(), model()
    plain = loss_of(transformer, inputs)
    assert loss_of(transformer, inputs, r_drop=5.0) == pytest.approx(plain, rel=1e-5)


def test_r_drop_weighs_the_divergence_as_the_paper_does(monkeypatch):
    """Half of -log P1 - log P2 + alpha / 2 (KL12 + KL21), for the mean of the two passes."""
    seen = {}

    def loss(x, *given, **options):
        seen.update(x=oracle.array(x), **options)
        return projected_cross_entropy(x, *given, **options)

    monkeypatch.setattr("keras_transformer.training.objective.projected_cross_entropy", loss)
    loss_of(model(dropout=0.3), batch(), r_drop=4.0)
    one, other = seen["x"]
    assert np.abs(one - other).max() > 0.1  # dropout makes them differ
    assert seen["agreement"] == 4 / 4


def test_r_drop_makes_the_passes_of_dropout_more_alike():
    inputs = batch(size=16)

    def disagreement(alpha):
        keras.utils.set_random_seed(1)
        transformer = model(dropout=0.3)
        objective = kt.Objective(transformer, 0.1, kt.MethodsConfig(r_drop=alpha))
        objective.compile(keras.optimizers.Adam(1e-2))
        objective.fit(inputs, batch_size=16, epochs=30, verbose=0)
        one, other = (
            ops.softmax(
                transformer({"source": inputs["source"], "target": inputs["target"]}, training=True)
            )
            for _ in range(2)
        )
        return float(ops.mean(ops.abs(one - other)))

    assert disagreement(10.0) < 0.5 * disagreement(0.0)


def test_the_gold_token_becomes_rarer_by_the_three_formulas_of_the_paper():
    def at(i, decay, k, c=0.0, floor=0.0):
        return float(gold_probability(np.array(i, "int32"), decay, k, c, floor))

    assert at(300, "linear", 1.0, 1e-3) == pytest.approx(0.7)
    assert at(2000, "linear", 1.0, 1e-3, floor=0.25) == pytest.approx(0.25)
    assert at(100, "exponential", 0.99) == pytest.approx(0.99**100, rel=1e-4)
    assert at(500, "inverse_sigmoid", 100) == pytest.approx(100 / (100 + np.exp(5)), rel=1e-4)
    assert at(10**6, "inverse_sigmoid", 100) == 0  # and no overflow


def mixed(use_gold, how, passes=1):
    inputs, transformer = batch(), model()
    source, gold = ops.array(inputs["source"]), ops.array(inputs["target"])
    if how == "sequence":
        mixed = mix_in_sequence(transformer, transformer.encode(source), gold, use_gold)
        return inputs["target"], oracle.array(mixed)

    def predict(target):
        logits = transformer({"source": source, "target": target})
        return ops.cast(ops.argmax(logits, axis=-1), "int32")

    return inputs["target"], oracle.array(mix_in_passes(predict, gold, use_gold, passes))


@pytest.mark.parametrize("how", ["sequence", "passes"])
def test_a_target_that_is_all_gold_is_read_as_it_is(how):
    gold, found = mixed(np.full((5, 6), True), how)
    np.testing.assert_array_equal(found, gold)


@pytest.mark.parametrize("how", ["sequence", "passes"])
def test_begin_and_padding_are_read_as_they_are(how):
    gold, found = mixed(np.full((5, 6), False), how)
    np.testing.assert_array_equal(found[:, 0], 1)
    np.testing.assert_array_equal(found == 0, gold == 0)
    assert (found != gold).any()


def test_one_pass_reads_what_the_gold_prefix_is_followed_by():
    keras.utils.set_random_seed(3)
    inputs, transformer = batch(), model()
    logits = transformer({"source": inputs["source"], "target": inputs["target"]})
    use_gold = np.random.default_rng(1).random((5, 6)) < 0.5
    found = mix_in_passes(
        lambda _: ops.cast(ops.argmax(logits, axis=-1), "int32"), inputs["target"], use_gold, 1
    )
    predicted = oracle.array(logits).argmax(-1)
    for row, place in np.ndindex(5, 6):
        gold = inputs["target"][row, place]
        own = place > 0 and gold != 0 and not use_gold[row, place]
        own = own and predicted[row, place - 1] != 0
        assert found[row, place] == (predicted[row, place - 1] if own else gold)


def test_as_many_passes_as_places_are_the_sequential_form():
    use_gold = np.random.default_rng(1).random((5, 6)) < 0.3
    keras.utils.set_random_seed(4)
    _, sequence = mixed(use_gold, "sequence")
    keras.utils.set_random_seed(4)
    gold, parallel = mixed(use_gold, "passes", passes=5)
    np.testing.assert_array_equal(sequence, parallel)
    assert (sequence != gold).any()


def test_free_running_reads_what_greedy_search_writes():
    keras.utils.set_random_seed(5)
    inputs, transformer = batch(), model()
    found = mix_in_sequence(
        transformer, transformer.encode(inputs["source"]), inputs["target"], np.full((5, 6), False)
    )
    memory = transformer.encode(inputs["source"])
    state = transformer.start(5, 6, memory)
    ids = np.ones(5, "int32")
    for place in range(5):
        logits, state = transformer.step(ids, state, memory, index=place)
        ids = oracle.array(logits).argmax(-1).astype("int32")
        ids = np.where(ids == 0, inputs["target"][:, place + 1], ids)
        real = inputs["target"][:, place + 1] != 0
        np.testing.assert_array_equal(found[:, place + 1][real], ids[real])
        ids = np.where(real, ids, 0)


@pytest.mark.parametrize("how", ["sequential", "two_pass", "parallel", "free_running"])
def test_a_model_that_reads_itself_learns(how):
    keras.utils.set_random_seed(1)
    inputs = batch(size=16)
    methods = kt.MethodsConfig(target_input=how, sampling_k=0.9, sampling_c=0.01)
    objective = kt.Objective(model(), 0.0, methods)
    objective.compile(keras.optimizers.Adam(1e-2))
    losses = objective.fit(inputs, batch_size=8, epochs=25, verbose=0).history["loss"]
    assert losses[-1] < 0.75 * losses[0]
    assert int(objective.batches) == 50


def copying(seed=1):
    """A batch with source and target tokens that the vocabulary does not know."""
    inputs = batch(seed)
    inputs["source"][2, :2] = V, V + 1
    inputs["labels"][2, 1], inputs["target"][2, 2] = V + 1, V + 1
    return inputs


def test_a_model_that_copies_reads_its_own_copies():
    """With no gold token at all, in two passes: what the place before found most probable."""
    keras.utils.set_random_seed(1)
    inputs, transformer = copying(), model(copy_words=2)
    methods = kt.MethodsConfig(target_input="two_pass", sampling_k=1e-9)
    objective = kt.Objective(transformer, 0.0, methods)
    found = oracle.array(objective._mix(inputs["source"], inputs["source"], inputs["target"]))
    log_p = transformer({name: inputs[name] for name in ("source", "target")})
    written = oracle.array(log_p).argmax(-1)[:, :-1]
    gold = inputs["target"][:, 1:]
    np.testing.assert_array_equal(found[:, 0], 1)
    expected = np.where((gold == 0) | (written == 0), gold, written)
    np.testing.assert_array_equal(found[:, 1:], expected)


@pytest.mark.parametrize("how", ["sequential", "two_pass", "parallel", "free_running"])
def test_a_model_that_copies_learns_by_all_methods(how):
    keras.utils.set_random_seed(1)
    methods = kt.MethodsConfig(
        target_input=how, r_drop=1.0, source_word_dropout=0.1, guided_attention=0.1
    )
    objective = kt.Objective(model(copy_words=2, dropout=0.1), 0.1, methods)
    objective.compile(keras.optimizers.Adam(1e-2))
    losses = objective.fit(copying(), batch_size=5, epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.75 * losses[0]


def test_two_passes_of_a_model_that_copies_are_apart_by_both_divergences(normal):
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in normal(2, 3, 4, V))
    labels = np.array([[5, 6, 7, 0], [5, 0, 0, 0], [5, 6, 7, 8]], "int32")
    log_p = np.log(np.concatenate([p, q])).astype("float32")
    found = float(_divergence(log_p, np.concatenate([labels, labels])))
    apart = (p * np.log(p / q) + q * np.log(q / p)).sum(-1)
    assert found == pytest.approx(apart[labels > 0].sum() / 8, rel=1e-5)


def test_the_loss_of_an_epoch_is_the_mean_over_its_tokens():
    inputs = batch()
    objective = kt.Objective(model(), 0.1)
    objective.compile()
    whole = objective.evaluate(inputs, batch_size=5, verbose=0, return_dict=True)
    parts = objective.evaluate(inputs, batch_size=1, verbose=0, return_dict=True)
    assert parts == pytest.approx(whole, rel=1e-4)


def test_attention_off_the_diagonal_costs_what_the_paper_says(normal):
    alignment = np.abs(normal(5, 6, 6))
    inputs = batch()
    source, target = inputs["source"], inputs["target"]
    total, tokens = 0.0, 0
    for row in range(5):
        lengths = [(ids[row] > 0).sum() for ids in (target, source)]
        for t in range(lengths[0]):
            tokens += 1
            for s in range(6):
                apart = t / lengths[0] - s / lengths[1]
                total += alignment[row, t, s] * (1 - np.exp(-(apart**2) / (2 * 0.3**2)))
    found = float(diagonal_loss(alignment, source, target, 0.3))
    assert found == pytest.approx(total / tokens, rel=1e-5)


def read_by(inputs, batches=0, **methods):
    """What the decoder of an untrained model reads under a method, and the model."""
    keras.utils.set_random_seed(1)
    objective = kt.Objective(model(), 0.0, kt.MethodsConfig(**methods))
    objective.batches.assign(batches)
    source, gold = ops.array(inputs["source"]), ops.array(inputs["target"])
    return oracle.array(objective._mix(source, source, gold)), objective.transformer


def test_every_line_of_target_input_reads_what_it_says():
    inputs = batch(size=16)
    never = dict(sampling_k=1e-9, sampling_c=0.0)
    free, transformer = read_by(inputs, target_input="free_running")
    source, gold = ops.array(inputs["source"]), ops.array(inputs["target"])
    own = mix_in_sequence(transformer, transformer.encode(source), gold, gold < 0)
    np.testing.assert_array_equal(free, oracle.array(own))
    assert (free != inputs["target"]).any()
    found = {
        how: read_by(inputs, target_input=how, **never, **options)[0]
        for how, options in (
            ("sequential", {}),
            ("two_pass", {}),
            ("parallel", {"sampling_passes": inputs["target"].shape[1] - 1}),
        )
    }
    np.testing.assert_array_equal(found["sequential"], free)
    # As many passes as places give the same; one pass predicts from the gold target.
    np.testing.assert_array_equal(found["parallel"], free)
    assert (found["two_pass"] != free).any()
    once, _ = read_by(inputs, target_input="parallel", sampling_passes=1, **never)
    np.testing.assert_array_equal(once, found["two_pass"])


@pytest.mark.parametrize(
    ("decay", "k"), [("linear", 0.9), ("exponential", 0.99), ("inverse_sigmoid", 20.0)]
)
def test_the_share_of_gold_falls_with_the_batches(decay, k):
    inputs = batch(size=600)
    line = dict(target_input="two_pass", sampling_decay=decay, sampling_k=k, sampling_c=0.01)
    own, _ = read_by(inputs, target_input="two_pass", sampling_k=1e-9, sampling_c=0.0)
    differs = own != inputs["target"]
    shares = []
    for batches in (0, 40):
        read, _ = read_by(inputs, batches, **line)
        shares.append((read == inputs["target"])[differs].mean())
        expected = float(gold_probability(batches, decay, k, 0.01, 0.0))
        assert shares[-1] == pytest.approx(expected, abs=0.05)
    assert shares[1] < shares[0] - 0.1


def test_given_alignments_are_a_cross_entropy():
    alignment = np.array([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]], "float32")
    given = np.array([[[1, 1, 0], [0, 1, 0], [0, 0, 0]]], "bool")  # the last one is not aligned
    target = np.array([[1, 5, 6]])
    expected = -((np.log(0.5) + np.log(0.25)) / 2 + np.log(0.8)) / 3
    assert float(alignment_loss(alignment, given, target)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("guidance", ["diagonal", "alignments"])
def test_guided_attention_looks_where_it_is_told(guidance):
    inputs = batch(size=8)
    backwards = np.eye(6, dtype="bool")[::-1] & (inputs["target"] > 0)[..., None]
    inputs["alignments"] = backwards

    def looks(weight):
        keras.utils.set_random_seed(1)
        transformer = model()
        methods = kt.MethodsConfig(guided_attention=weight, guidance=guidance, guidance_width=0.1)
        objective = kt.Objective(transformer, 0.0, methods)
        objective.compile(keras.optimizers.Adam(1e-2))
        objective.fit(inputs, batch_size=8, epochs=40, verbose=0)
        scores = transformer.attention_scores(inputs["source"], inputs["target"])["cross"]
        alignment = transformer.alignment(scores)
        if guidance == "diagonal":
            return -float(diagonal_loss(alignment, inputs["source"], inputs["target"], 0.1))
        return -float(alignment_loss(alignment, backwards, inputs["target"]))

    assert looks(2.0) > 0.7 * looks(0.0)  # both are negative


def test_word_dropout_hides_words_and_nothing_else():
    objective = kt.Objective(model())
    ids = np.array([[1, 5, 6, 7, 8, 2, 0, 0]] * 500, "int32")
    dropped = oracle.array(objective._drop_words(ids, 0.2))
    words = ids > 3
    np.testing.assert_array_equal(dropped[~words], ids[~words])
    assert set(np.unique(dropped[words])) == {3, 5, 6, 7, 8}
    assert (dropped[words] == 3).mean() == pytest.approx(0.2, abs=0.03)
    inputs, transformer = batch(), model()
    plain = loss_of(transformer, inputs)
    for side in ("source_word_dropout", "target_word_dropout"):
        assert loss_of(transformer, inputs, **{side: 0.5}) != pytest.approx(plain, rel=1e-4)
        objective = kt.Objective(transformer, 0.1, kt.MethodsConfig(**{side: 0.5}))
        assert float(objective(inputs)["loss"]) == pytest.approx(plain, rel=1e-5)
