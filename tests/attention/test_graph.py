"""Decoding in a TensorFlow graph that knows no sizes, as that of a SavedModel, is the layer's own.

Its optimiser fuses operations, to others where a group has one head: with oneDNN it has returned
wrong numbers there.
"""

import keras
import pytest

from keras_transformer import CrossAttention, SelfAttention
from tests.attention import formulas
from tests.attention.test_contract import D, causal, close, crossing

tf = pytest.importorskip("tensorflow")
if keras.backend.backend() != "tensorflow":
    pytest.skip("runs TensorFlow's graphs", allow_module_level=True)

B, T, S = 6, 8, 9
SEQUENCE = tf.TensorSpec([None, None, D])


def beside_dot(spec):
    """One head of it and one of `dot`; of a line of several kinds of heads, the line."""
    return spec if spec not in formulas.SPECS else f"dot + {spec}"


def loop(start, step, x, *more):
    """The outputs [B, T, D] of all steps, in one graph."""

    def run(x, *more):
        def body(index, outputs, state):
            output, state = step(tf.gather(x, [index], axis=1), state, index)
            return index + 1, outputs.write(index, output[:, 0]), state

        outputs = tf.TensorArray(tf.float32, T, element_shape=[None, D])
        state = start(tf.shape(x)[0], *more)
        _, outputs, _ = tf.while_loop(lambda index, *_: index < T, body, (0, outputs, state))
        return tf.transpose(outputs.stack(), (1, 0, 2))

    run = tf.function(run, input_signature=[SEQUENCE] * (1 + len(more)), autograph=False)
    return run(*map(tf.constant, (x, *more)))


def num_heads(spec):
    return 4 if spec not in formulas.SPECS else 2


@causal
def test_self_attention_steps_as_the_whole(spec, normal):
    layer = SelfAttention(D, num_heads(spec), heads=beside_dot(spec), causal=True)
    x = normal(B, T, D)
    whole = layer(x)
    found = loop(
        lambda rows: layer.start(rows, T),
        lambda place, state, index: layer.step(place, state, index=index),
        x,
    )
    close(found, whole, atol=2e-5)


@crossing
def test_cross_attention_steps_as_the_whole(spec, normal):
    layer = CrossAttention(D, num_heads(spec), heads=beside_dot(spec))
    x, memory = normal(B, T, D), normal(B, S, D)
    whole = layer(x, memory)
    remembered = {}

    def start(rows, memory):
        remembered["memory"] = layer.remember(memory)
        return layer.start(rows, remembered["memory"])

    def step(place, state, index):
        output, _, state = layer.step(place, remembered["memory"], state)
        return output, state

    close(loop(start, step, x, memory), whole, atol=2e-5)
