"""What is said to be linear in the length of the sequence never makes a matrix of its square."""

import keras
import pytest

from keras_transformer.attention import MECHANISMS
from keras_transformer.attention.spec import parse_heads

tf = pytest.importorskip("tensorflow")
if keras.backend.backend() != "tensorflow":
    pytest.skip("reads TensorFlow's graphs", allow_module_level=True)

LONG = 4096
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
    mechanism = MECHANISMS[group.name](1, 8, causal=causal, **group.options)
    if causal and not mechanism.can_be_causal:
        pytest.skip("not a causal mechanism")
    mechanism.build(*[(None, 1, None, 8)] * 3)

    @tf.function(input_signature=[tf.TensorSpec((1, 1, LONG, 8))] * 3)
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
