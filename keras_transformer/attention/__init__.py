"""Attention mechanisms by name; a new one is one more row."""

from keras_transformer.attention.softmax import DotProductAttention

MECHANISMS = {
    "dot": DotProductAttention,
}
