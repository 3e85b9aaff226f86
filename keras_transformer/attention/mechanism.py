"""The one interface of every attention mechanism."""

import keras
from keras import ops


class Mechanism(keras.layers.Layer):
    """How a group of heads turns its queries, keys and values into outputs.

    A mechanism sees heads that are already projected and split. Within a sequence it has three
    verbs: `call` takes a whole sequence, `start` gives the state before the first place, `step`
    takes one place in. Across, to another sequence, `call` takes both sequences, `remember` what is
    needed of the other one, `start_recall` gives the state before the first place and `recall`
    takes one place in. States and memories are trees of batch-first tensors that are given and
    returned, never kept in the layer, so a beam search can reorder them without knowing what is in
    them.

    Args:
        num_heads: H, the heads of this group.
        head_dim: K, the size of each head.
        causal: whether a place may look at itself and earlier places only.
        dropout: rate of dropout on the attention weights, where there are any.
    """

    # Where it may be used; an option of an instance may take a use away.
    can_encode = True  # within a sequence that is there as a whole
    can_be_causal = True
    can_cross = True
    # Whether the attention scores are, for whoever copies by them or tells them where to look. They
    # may sum to less than 1, where attention can end up nowhere.
    weights_are_probabilities = True
    # The longest sequence that it can look at; None for any.
    longest = None
    # Whether it compares the queries and keys that it is given by their dot product: only there do
    # rotary positions leave nothing but the distance.
    compares_by_dot_product = True
    # What it wants projected. A key that is not projected is the query, a query the value, and a
    # mechanism that wants nothing projected is given its heads' part of the layer's input.
    projections = ("query", "key", "value")

    def __init__(self, num_heads, head_dim, causal=False, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.causal = causal
        self.dropout = dropout

    def build(self, query_shape, key_shape, value_shape):
        """Makes the weights, of which scaled dot-product attention has none."""

    def call(self, query, key, value, keep=None, return_attention_scores=False, training=False):
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
        result = self.attend(query, key, value, keep)
        if return_attention_scores:
            # A mechanism is linear in its values: of the identity as values it makes its own
            # weights; while training, with another draw of dropout.
            batch_size, length = ops.shape(key)[0], ops.shape(key)[2]
            places = ops.eye(length, dtype=value.dtype)[None, None]
            places = ops.broadcast_to(places, (batch_size, self.num_heads, length, length))
            result = result, self.attend(query, key, places, keep)
        if training:  # not before: what is learned of all places would tell of those to come
            self.adapt(query, key, keep)
        return result

    def attend(self, query, key, value, keep):
        """What `call` does, without the scores; values may be of any size."""
        raise NotImplementedError

    def adapt(self, query, key, keep):
        """Changes what is learned without gradients; called after each pass of training."""

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

    def remember(self, key, value, keep=None):
        """What is needed of another sequence: computed once, before the first place.

        Args:
            key, value: [B, H, S, K].
            keep: bool [B, S], True where a key may be looked at; None for everywhere.
        """
        memory = {"key": key, "value": value}
        return memory if keep is None else memory | {"keep": keep}

    def start_recall(self, rows, memory):
        """The state of `rows` hypotheses before the first place; most mechanisms have none."""
        return ()

    def recall(self, query, memory, state):
        """Attends from one place of N hypotheses a sentence to a memory.

        The hypotheses of a sentence are so many queries to its one memory, which need not be copied
        for each of them.

        Args:
            query: [B, H, N, K].
            memory: what `remember` returned of the B sentences.
            state: what `start_recall` or the last `recall` returned, for B N rows.

        Returns:
            The output [B, H, N, K], the attention scores [B, H, N, S] and the new state.
        """
        raise NotImplementedError
