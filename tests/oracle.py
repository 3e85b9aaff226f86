"""The formulas of the paper in plain NumPy: loops over places and heads, no vectorised tricks.

Weights are taken from the layers; nothing else of the package is used here.
"""

import math

import numpy as np


def array(tensor):
    import keras

    return keras.ops.convert_to_numpy(tensor).astype("float64")


def softmax(scores):
    powers = [math.exp(score - max(scores)) for score in scores]
    return [power / sum(powers) for power in powers]


def attention(query, key, value, allowed):
    """Equation 1 for one head: query [T, K], key and value [S, K], allowed(t, s) -> bool."""
    output = np.zeros((len(query), value.shape[1]))
    for t in range(len(query)):
        seen = [s for s in range(len(key)) if allowed(t, s)]
        scores = [float(query[t] @ key[s]) / math.sqrt(query.shape[1]) for s in seen]
        for s, weight in zip(seen, softmax(scores), strict=True):
            output[t] += weight * value[s]
    return output


def multi_head(query_input, memory, weights, num_heads, allowed):
    """Section 3.2.2 for one sentence: Concat(head_1, ..., head_h) W^O."""
    w_query, w_key, w_value, w_output = weights
    size = w_query.shape[1] // num_heads
    heads = []
    for head in range(num_heads):
        part = slice(head * size, (head + 1) * size)
        heads.append(
            attention(
                query_input @ w_query[:, part],
                memory @ w_key[:, part],
                memory @ w_value[:, part],
                allowed,
            )
        )
    return np.concatenate(heads, axis=1) @ w_output


def self_attention_weights(layer):
    joined = array(layer.query_key_value.kernel)
    return (*np.split(joined, 3, axis=1), array(layer.output_projection.kernel))


def cross_attention_weights(layer):
    key, value = np.split(array(layer.key_value.kernel), 2, axis=1)
    return array(layer.query.kernel), key, value, array(layer.output_projection.kernel)


def feed_forward(x, layer):
    """Section 3.3: max(0, x W1 + b1) W2 + b2."""
    inner = np.maximum(0, x @ array(layer.inner.kernel) + array(layer.inner.bias))
    return inner @ array(layer.outer.kernel) + array(layer.outer.bias)


def layer_norm(x, layer):
    """(x - mean) / sqrt(variance + epsilon) * gain + bias, over the last axis."""
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    normal = (x - mean) / np.sqrt(variance + layer.epsilon)
    return normal * array(layer.gamma) + array(layer.beta)


def residual(x, connection, sublayer):
    """Section 3.1, LayerNorm(x + Sublayer(x)), or its pre-norm form."""
    if connection.norm == "post":
        return layer_norm(x + sublayer(x), connection.layer_norm)
    return x + sublayer(layer_norm(x, connection.layer_norm))


def encoder_layer(x, layer, num_heads, kept):
    """One encoder layer for one sentence x [S, D]; kept(s) says whether place s holds a token."""
    attend = layer.self_attention.layer

    def look(x):
        weights = self_attention_weights(attend)
        return multi_head(x, x, weights, num_heads, lambda t, s: kept(s))

    x = residual(x, layer.self_attention, look)
    return residual(x, layer.feed_forward, lambda x: feed_forward(x, layer.feed_forward.layer))


def decoder_layer(x, memory, layer, num_heads, kept):
    """One decoder layer for one sentence x [T, D] and its memory [S, D]."""

    def look_back(x):
        weights = self_attention_weights(layer.self_attention.layer)
        return multi_head(x, x, weights, num_heads, lambda t, s: s <= t)

    def look_across(x):
        weights = cross_attention_weights(layer.cross_attention.layer)
        return multi_head(x, memory, weights, num_heads, lambda t, s: kept(s))

    x = residual(x, layer.self_attention, look_back)
    x = residual(x, layer.cross_attention, look_across)
    return residual(x, layer.feed_forward, lambda x: feed_forward(x, layer.feed_forward.layer))


def position_encoding(position, d_model):
    """Section 3.5."""
    row = np.zeros(d_model)
    for i in range(d_model // 2):
        angle = position / 10000 ** (2 * i / d_model)
        row[2 * i], row[2 * i + 1] = math.sin(angle), math.cos(angle)
    return row
