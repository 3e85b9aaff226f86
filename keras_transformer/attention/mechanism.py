"""The one interface of every attention mechanism: `call`, `start`, `step`."""

import keras


class Mechanism(keras.layers.Layer):
    """How a group of heads turns its queries, keys and values into outputs.

    A mechanism sees heads that are already projected and split. It has three verbs: `call` takes a
    whole sequence, `start` gives the state before the first place, `step` takes one place in. State
    is a tree of batch-first tensors that is given and returned, never kept in the layer, so a beam
    search can reorder the state of any mechanism without knowing what is in it.

    Args:
        num_heads: H, the heads of this group.
        head_dim: K, the size of each head.
        causal: whether a place may look at itself and earlier places only.
        dropout: rate of dropout on the attention weights.
    """

    can_be_causal = True
    can_cross = True

    def __init__(self, num_heads, head_dim, causal=False, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.causal = causal
        self.dropout = dropout

    def build(self, query_shape, key_shape, value_shape):
        """Makes the weights, of which softmax attention has none."""

    def call(self, query, key, value, keep=None, return_attention_scores=False):
        """Attends with every query at once.

        Args:
            query: [B, H, T, K].
            key: [B, H, S, K].
            value: [B, H, S, K].
            keep: bool [B, S], True where a key may be looked at; None for everywhere.
            return_attention_scores: whether to return the weights [B, H, T, S] as well.

        Returns:
            [B, H, T, K], or that and the attention scores.
        """
        raise NotImplementedError

    def start(self, batch_size, length):
        """The state before the first of at most `length` places."""
        raise NotImplementedError

    def step(self, query, key, value, state, index):
        """Takes in the place `index` and attends from it to all places so far.

        Args:
            query, key, value: [B, H, 1, K], of the place `index`.
            state: what `start` or the last `step` returned.
            index: int or int tensor, the position of the place; the same for the whole batch.

        Returns:
            The output [B, H, 1, K] and the new state.
        """
        raise NotImplementedError
