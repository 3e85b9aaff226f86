"""What is said to be linear in the length of the sequence never makes a matrix of its square."""

import keras
import pytest
from keras import ops

from keras_transformer.attention import MECHANISMS
from keras_transformer.attention.spec import parse_heads

tf = pytest.importorskip("tensorflow")
if keras.backend.backend() != "tensorflow":
    pytest.skip("reads TensorFlow's graphs", allow_module_level=True)

# Large enough that a state of F x K numbers at every place would be seen.
LONG, SIZE = 4096, 32
LINEAR = [
    "local(window=32)",
    "local(window=32, global_tokens=2)",
    "local(window=32, bias='t5')",
    "local(window=32, global_tokens=2, bias='shaw')",
    "global_tokens(count=2, bias='xl')",
    "strided(stride=16, window=32)",
    "strided(stride=16, window=32, local=32)",
    "global_tokens(count=4)",
    "global_tokens(count=4, added=True)",
    "block(size=32)",
    "lsh(window=32, rounds=2)",
    "kmeans(window=32)",
    "sinkhorn(size=32)",
    "linformer(rank=32, max_length=4096)",
    "compressed(length=32)",
    "linear",
    "efficient",
    "rfa(features=16)",
    "performer(features=16)",
    "aft",
    "aft(kind='local', window=32)",
    "fourier",
]


def largest_tensor(spec, causal):
    """The most elements of any tensor of a forward and a backward pass over LONG places."""
    (group,) = parse_heads(spec, 1)
    mechanism = MECHANISMS[group.name](1, SIZE, causal=causal, **group.options)
    if causal and not mechanism.can_be_causal:
        pytest.skip("not a causal mechanism")
    mechanism.build(*[(None, 1, None, SIZE)] * 3)

    @tf.function(input_signature=[tf.TensorSpec((1, 1, LONG, SIZE))] * 3)
    def both_ways(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = mechanism(*inputs, keep=tf.ones((1, LONG), tf.bool))
            loss = tf.reduce_sum(tf.square(output))
        return tape.gradient(loss, inputs, unconnected_gradients="zero")

    graph = both_ways.get_concrete_function().graph
    sizes = [
        output.shape.num_elements() or 0
        for operation in graph.get_operations()
        for output in operation.outputs
        if output.shape.is_fully_defined()
    ]
    assert len(sizes) > 20  # shapes are known here
    return max(sizes)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", LINEAR)
def test_no_tensor_grows_with_the_square_of_the_length(spec, causal):
    assert largest_tensor(spec, causal) < LONG * LONG / 16


def test_that_would_be_seen():
    assert largest_tensor("dot", False) >= LONG * LONG


def test_a_sum_at_every_place_would_be_seen(monkeypatch):
    def sums_so_far(query, key, value):
        sums = ops.cumsum(key[..., :, None] * value[..., None, :], axis=2)  # [B, H, N, F, K]
        return ops.einsum("bhnf,bhnfk->bhnk", query, sums)

    monkeypatch.setattr("keras_transformer.attention.linear.sums_so_far", sums_so_far)
    assert largest_tensor("linear", True) > LONG * LONG / 16
    assert largest_tensor("performer(features=16)", True) > LONG * LONG / 16


def test_features_are_made_orthogonal_only_where_they_are_drawn_anew():
    mechanism = MECHANISMS["performer"](1, 8, redraw=1000)
    mechanism.build(*[(None, 1, None, 8)] * 3)

    @tf.function(input_signature=[tf.TensorSpec((1, 1, 16, 8))])
    def train(x):
        return mechanism(x, x, x, training=True)

    graph = train.get_concrete_function().graph.as_graph_def()
    branches = {each.signature.name: each.node_def for each in graph.library.function}
    decomposing = [name for name, nodes in branches.items() if any(n.op == "Qr" for n in nodes)]
    assert not any(node.op == "Qr" for node in graph.node)
    assert len(decomposing) == 1
    assert any(node.attr["then_branch"].func.name == decomposing[0] for node in graph.node)
