"""Words that the vocabulary does not know, under ids of their own, so that they can be copied."""

import re
from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.text.tokenizer import UNKNOWN, Tokenizer

UNKNOWN_TEXT = " ⁇ "  # sentencepiece's own
BETWEEN, LINE_BREAK = "(.)(▁)", "\\1\n\\2"  # two words of a piece, and what parts them


class UnknownWords:
    """A tokenizer in which a sentence's unknown words have ids too (See et al. 2017, section 2.2).

    The k-th unknown word of a source, of those that differ, has the id V + k in that source and in
    its target. A word is what a "word" vocabulary has; of other vocabularies it is a part of one,
    such as a rare character. As in `Tokenizer`, `find`, `encode` and `decode` work on Python
    strings, `find_in_graph`, `tokenize` and `detokenize` on tensors.

    Args:
        tokenizer: the one that does not know them.
        slots: how many unknown words of a source have ids; those beyond stay unknown. With 0 this
            is the tokenizer and nothing else.

    Example:

    >>> from keras_transformer.text.tokenizer import Tokenizer
    >>> from keras_transformer.text.unknown import UnknownWords
    >>> tokenizer = Tokenizer.learn(["to be or not to be"] * 9, vocabulary_size=8, kind="word")
    >>> unknown = UnknownWords(tokenizer, slots=4)
    >>> words = unknown.find(["to be Hamlet"])
    >>> words
    [['▁Hamlet']]
    >>> ids = unknown.encode(["Hamlet or Ophelia"], words)
    >>> ids[0][0] == tokenizer.vocabulary_size
    True
    >>> unknown.decode(ids, words)
    ['Hamlet or ⁇']
    """

    def __init__(self, tokenizer: Tokenizer, slots: int):
        self.tokenizer = tokenizer
        self.slots = slots

    def find(self, lines: Sequence[str]) -> list[list[str]]:
        """The unknown words of each line."""
        if not self.slots:
            return [[] for _ in lines]
        found = ([piece for piece, one in row if one == UNKNOWN] for row in self._split(lines))
        return [list(dict.fromkeys(words))[: self.slots] for words in found]

    def encode(self, lines: Sequence[str], words: Sequence[Sequence[str]]) -> list[list[int]]:
        """The ids of each line, with those of the words of its source."""
        if not self.slots:
            return self.tokenizer.encode(lines)
        first = self.tokenizer.vocabulary_size
        return [
            [
                first + known.index(piece) if one == UNKNOWN and piece in known else one
                for piece, one in row
            ]
            for row, known in zip(self._split(lines), words, strict=True)
        ]

    def decode(self, ids: Sequence[Sequence[int]], words: Sequence[Sequence[str]]) -> list[str]:
        """The text of each list of ids, given the words of its source."""
        if not self.slots:
            return self.tokenizer.decode(ids)
        # Not by sentencepiece, which leaves the "▁" of pieces that it does not know as it is.
        texts = (
            [
                UNKNOWN_TEXT if one == UNKNOWN else piece
                for one, piece in zip(row, self.pieces(row, known), strict=True)
            ]
            for row, known in zip(ids, words, strict=True)
        )
        return ["".join(text).replace("▁", " ").strip() for text in texts]

    def pieces(self, ids: Sequence[int], words: Sequence[str]) -> list[str]:
        """The text of each single id; nothing for the id of a word that there is not."""
        size = self.tokenizer.vocabulary_size
        words = [*words, *[""] * (self.slots - len(words))]
        return [
            words[one - size] if one >= size else self.tokenizer.pieces([one])[0] for one in ids
        ]

    def _split(self, lines):
        """The pieces and ids of each line; of unknown words in a row sentencepiece makes one."""
        lines = list(lines)
        for row in zip(self.tokenizer.split(lines), self.tokenizer.encode(lines), strict=True):
            yield [
                (word, one)
                for piece, one in zip(*row, strict=True)
                for word in re.sub(BETWEEN, LINE_BREAK, piece).split("\n")
            ]

    def find_in_graph(self, lines: tf.Tensor) -> tf.Tensor:
        """The unknown words [B, slots] of lines [B]; "" where there are no more."""
        if not self.slots:
            return tf.fill([tf.size(lines), 0], "")
        pieces, ids = self._split_in_graph(lines)
        words = tf.ragged.boolean_mask(pieces, ids == UNKNOWN).to_tensor("")  # [B, U]
        place = tf.range(tf.shape(words)[1])
        same = words[:, :, None] == words[:, None, :]
        again = tf.reduce_any(same & (place[None, :] < place[:, None]), axis=2)
        words = tf.ragged.boolean_mask(words, ~again & (words != ""))
        return words[:, : self.slots].to_tensor("", shape=[None, self.slots])

    def tokenize(self, lines: tf.Tensor, words: tf.Tensor) -> tf.RaggedTensor:
        """The ids [B, None] of lines [B], with those of the words [B, slots] of their sources."""
        if not self.slots:
            return self.tokenizer.tokenize(lines)
        pieces, ids = self._split_in_graph(lines)
        same = pieces.to_tensor("")[:, :, None] == words[:, None, :]  # [B, S, slots]
        same &= (words != "")[:, None, :]
        own = self.tokenizer.vocabulary_size + tf.argmax(same, axis=2, output_type=tf.int32)
        dense = ids.to_tensor()
        dense = tf.where((dense == UNKNOWN) & tf.reduce_any(same, axis=2), own, dense)
        return tf.RaggedTensor.from_tensor(dense, ids.row_lengths())

    def detokenize(self, ids: tf.RaggedTensor, words: tf.Tensor) -> tf.Tensor:
        """The lines [B] of ids [B, None], given the words [B, slots] of their sources."""
        if not self.slots:
            return self.tokenizer.detokenize(ids)
        dense = ids.to_tensor()
        pieces = tf.where(dense == UNKNOWN, UNKNOWN_TEXT, self.spell(dense, words))
        pieces = tf.RaggedTensor.from_tensor(pieces, ids.row_lengths())
        lines = tf.strings.reduce_join(pieces, axis=1)
        return tf.strings.strip(tf.strings.regex_replace(lines, "▁", " "))

    def spell(self, ids: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        """The piece of each id [B, T], given the words [B, slots] of their sources."""
        size = self.tokenizer.vocabulary_size
        pieces = self.tokenizer.spell(tf.reshape(tf.where(ids < size, ids, UNKNOWN), [-1]))
        pieces = tf.reshape(pieces, tf.shape(ids))
        if not self.slots:
            return pieces
        copied = tf.gather(words, tf.maximum(ids - size, 0), batch_dims=1)
        return tf.where(ids < size, pieces, copied)

    def _split_in_graph(self, lines):
        pieces, ids = self.tokenizer.split_in_graph(lines), self.tokenizer.tokenize(lines)
        words = tf.strings.split(tf.strings.regex_replace(pieces, BETWEEN, LINE_BREAK), "\n")
        # [B, pieces, words]: the id of a piece is that of its words.
        ids = tf.repeat(ids.flat_values, words.values.row_lengths())
        words = words.merge_dims(1, 2)
        return words, words.with_flat_values(ids)
