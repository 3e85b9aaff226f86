"""Sentences in, sentences out."""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer import masks
from keras_transformer.data.batches import bucket_lengths
from keras_transformer.generation.loop import decode_greedily
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import BEGIN, END, Tokenizer


class Translator:
    """Translates lines of text with a trained model.

    Args:
        model: a `Transformer`.
        tokenizer: the one that it was trained with.
        tokens_per_batch: lines of like length are translated together, up to this many places.

    Example:

    >>> from keras_transformer import ModelConfig, Tokenizer, Transformer, Translator
    >>> tokenizer = Tokenizer.learn(["to be or not to be"] * 9, vocabulary_size=12, kind="char")
    >>> model = Transformer(ModelConfig.preset("tiny", vocabulary_size=12))
    >>> len(Translator(model, tokenizer)(["to be", "or not"]))  # untrained, so nonsense
    2
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer, tokens_per_batch: int = 4096):
        self.tokenizer = tokenizer
        self.max_length = model.config.max_length
        self.tokens_per_batch = tokens_per_batch
        self.decoder = GreedyDecoder(model)

    def __call__(self, lines: Sequence[str]) -> list[str]:
        """The translation of each line; of an empty line, an empty one.

        Of a line with more than the model's max_length tokens, only that many are read.
        """
        sources = [ids[: self.max_length - 1] for ids in self.tokenizer.encode(lines)]
        translations = [""] * len(sources)
        for rows in self._batch([len(ids) + 1 for ids in sources]):
            batch = self._pad([sources[row] for row in rows])
            targets = np.asarray(self.decoder.predict_on_batch(batch))
            for row, target in zip(rows, targets, strict=True):
                translations[row] = self._text(target)
        return translations

    def _batch(self, lengths):
        """Rows of like length, as many as fit into a batch; empty lines are in none."""
        order = sorted((length, row) for row, length in enumerate(lengths) if length > 1)
        rows = []
        for length, row in order:
            if rows and length * (len(rows) + 1) > self.tokens_per_batch:
                yield rows
                rows = []
            rows.append(row)
        if rows:
            yield rows

    def _pad(self, sources):
        longest = max(map(len, sources)) + 1
        length = next(most for most in bucket_lengths(self.max_length) if most >= longest)
        batch = np.zeros((len(sources), length), "int32")
        for row, ids in enumerate(sources):
            batch[row, : len(ids) + 1] = [*ids, END]
        return batch

    def _text(self, target):
        ids = target.tolist()
        ids = ids[: ids.index(END)] if END in ids else [one for one in ids if one]
        return self.tokenizer.decode([ids])[0]


class GreedyDecoder(keras.Model):
    """Greedy decoding as a Keras model, so that Keras compiles the loop on any backend."""

    def __init__(self, model: Transformer, **kwargs):
        super().__init__(**kwargs)
        self.model = model

    def call(self, source):
        batch_size, source_length = ops.shape(source)[0], ops.shape(source)[1]
        most = self.model.config.max_length

        # Room for a target of twice the source's length and then some, whatever the language. Each
        # row's limit is its own, so that it does not depend on the rows beside it.
        source_lengths = ops.sum(ops.cast(masks.keep_tokens(source), "int32"), axis=1)  # [B]
        limits = ops.minimum(2 * source_lengths + 16, most)
        room = 2 * source_length + 16
        length = min(room, most) if isinstance(room, int) else ops.minimum(room, most)

        memory = self.model.encode(source)
        return decode_greedily(
            lambda ids, state, index: self.model.step(ids, state, memory, index=index),
            self.model.start(batch_size, length),
            limits,
            length,
            BEGIN,
            END,
        )
