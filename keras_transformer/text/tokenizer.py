"""Subword tokenizers: learned with sentencepiece, the same ids in Python and in the graph."""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import sentencepiece
import tensorflow as tf
import tensorflow_text

from keras_transformer import masks
from keras_transformer.errors import InputError

BEGIN = 1  # stands before the first token of the target that the decoder reads
END = 2  # follows the last token of a sentence
UNKNOWN = 3  # a piece of text that the vocabulary has no piece for


class Tokenizer:
    """A sentencepiece model that turns text into ids and back.

    `encode` and `decode` work on Python strings, `tokenize` and `detokenize` on tensors inside a
    TensorFlow graph; both give the same ids. Id 0 is padding, 1 begins, 2 ends a sentence and 3 is
    unknown; neither side adds or needs those.

    Args:
        model: the bytes of a sentencepiece model with these special ids.

    Example:

    >>> from keras_transformer import Tokenizer
    >>> tokenizer = Tokenizer.learn(["to be or not to be"] * 9, vocabulary_size=12, kind="char")
    >>> tokenizer.decode(tokenizer.encode(["not to be"]))
    ['not to be']
    """

    def __init__(self, model: bytes):
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        found = [
            self._processor.pad_id(),
            self._processor.bos_id(),
            self._processor.eos_id(),
            self._processor.unk_id(),
        ]
        expected = [masks.PADDING, BEGIN, END, UNKNOWN]
        if found != expected:
            raise InputError(
                f"This sentencepiece model has the ids {found} for padding, begin, end, unknown; "
                f"expected {expected}. Learn it with this package, or with sentencepiece's "
                "--pad_id=0 --bos_id=1 --eos_id=2 --unk_id=3."
            )

    @classmethod
    def learn(
        cls,
        lines: Iterable[str],
        vocabulary_size: int,
        kind: str = "bpe",
        split_digits: bool = False,
        normalization: str = "nmt_nfkc",
    ) -> Self:
        """Learns a vocabulary of at most `vocabulary_size` pieces from lines of text."""
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=model,
                model_type=kind,
                vocab_size=vocabulary_size,
                # A little text has fewer pieces than asked for; take what there is.
                hard_vocab_limit=False,
                split_digits=split_digits,
                normalization_rule_name=normalization,
                max_sentence_length=1 << 20,  # bytes; longer lines are not learned from
                # Every character of the text: what one language has rarely, another is made of.
                character_coverage=1.0,
                pad_id=masks.PADDING,
                bos_id=BEGIN,
                eos_id=END,
                unk_id=UNKNOWN,
                minloglevel=2,
            )
        except RuntimeError as error:
            # "Internal: src/trainer.cc(582) [(...)] Vocabulary size too high. Please set ..."
            reason = str(error).rpartition("]")[2].partition(". ")[0].strip()
            if reason:
                reason += ". Change tokenizer.vocabulary_size."
            raise InputError(
                f"no {kind} vocabulary of {vocabulary_size} pieces can be learned from this text: "
                f"{reason or 'there is nothing in it but white space.'}"
            ) from None
        return cls(model.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads what `save` wrote."""
        return cls(Path(path).read_bytes())

    def save(self, path: str | Path) -> None:
        """Writes the sentencepiece model, which any sentencepiece tool can read."""
        Path(path).write_bytes(self.model)

    @property
    def vocabulary_size(self) -> int:
        return self._processor.vocab_size()

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line."""
        return self._processor.encode(list(lines))

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each list of ids."""
        return self._processor.decode([list(map(int, row)) for row in ids])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each single id, for looking at; a space is shown as "▁"."""
        return [self._processor.id_to_piece(int(one)) for one in ids]

    def split(self, lines: Sequence[str]) -> list[list[str]]:
        """The pieces of each line; one that is unknown is there as it stands in the line."""
        return self._processor.encode(list(lines), out_type=str)

    def tokenize(self, lines: tf.Tensor, regularization: float = 0.0) -> tf.RaggedTensor:
        """The ids [B, None] of lines [B], in the graph.

        Args:
            lines: [B].
            regularization: above 0, the pieces are drawn: the share of merges that BPE leaves out,
                or the alpha of a unigram vocabulary. Every call draws anew, by no seed.
        """
        sampling = dict(nbest_size=-1, alpha=regularization) if regularization else {}
        return self._in_graph(**sampling).tokenize(lines)

    def detokenize(self, ids: tf.RaggedTensor | tf.Tensor) -> tf.Tensor:
        """The lines [B] of ids [B, None], in the graph."""
        return self._in_graph().detokenize(ids)

    def spell(self, ids: tf.Tensor) -> tf.Tensor:
        """The piece of each id, in the graph."""
        return self._in_graph().id_to_string(ids)

    def split_in_graph(self, lines: tf.Tensor) -> tf.RaggedTensor:
        """The pieces [B, None] of lines [B], as `split` gives them, in the graph."""
        return self._in_graph(out_type=tf.string).tokenize(lines)

    def _in_graph(self, **options):
        # Made anew in every graph, which then holds the model itself. A tokenizer that is made once
        # and shared is lost whenever someone sets TensorFlow's random seed.
        return tensorflow_text.SentencepieceTokenizer(model=self.model, **options)
