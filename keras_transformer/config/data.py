"""The vocabulary, and the sentence pairs."""

import dataclasses

from keras_transformer.config.checks import FieldError, check, check_choice

TOKENIZERS = ("bpe", "unigram", "char", "word")


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """How the joint subword vocabulary of source and target is learned.

    Args:
        kind: "bpe", "unigram", "char" or "word".
        vocabulary_size: how many pieces to learn, the four special ones among them.
        split_digits: whether every digit is a piece of its own.
        normalization: sentencepiece's rule: "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf" (the last
            two fold case) or "identity".
    """

    kind: str = "bpe"
    vocabulary_size: int = 8000
    split_digits: bool = False
    normalization: str = "nmt_nfkc"

    def __post_init__(self):
        check_choice(self, "kind", TOKENIZERS)
        check(self, "vocabulary_size", "more than the 4 special pieces", lambda value: value > 4)
        rules = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")
        check_choice(self, "normalization", rules)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where the sentence pairs are, and how they are put into batches.

    Args:
        train_source, train_target: two files, line N of one translating line N of the other.
        train: or one file, source and target separated by a tab.
        train_alignments: a file with the word alignments of the pairs, for guided attention: lines
            such as "0-0 1-2", source word and target word, counted from 0, words between spaces.
        validation_source, validation_target, validation: likewise; may be left out.
        tokens_per_batch: a batch holds this many places a side, padding included.
        max_tokens: longer sentences, on either side, are left out of training.
        shuffle_pairs: how many pairs the shuffling has in view at once.
    """

    train_source: str | None = None
    train_target: str | None = None
    train: str | None = None
    train_alignments: str | None = None
    validation_source: str | None = None
    validation_target: str | None = None
    validation: str | None = None
    tokens_per_batch: int = 4096
    max_tokens: int = 128
    shuffle_pairs: int = 200_000

    def __post_init__(self):
        for name in ("tokens_per_batch", "max_tokens", "shuffle_pairs"):
            check(self, name, "a positive number", lambda value: value > 0)
        if self.max_tokens > self.tokens_per_batch:
            raise FieldError(
                self,
                "max_tokens",
                f" is {self.max_tokens}, more than data.tokens_per_batch={self.tokens_per_batch}: "
                "a longest sentence would not fit into a batch.",
            )
        for split in ("train", "validation"):
            names = (split, f"{split}_source", f"{split}_target")
            given = tuple(getattr(self, name) is not None for name in names)
            # A TSV, or two files; validation may be left out, train is asked for when it is read.
            if given not in {(True, False, False), (False, True, True), (False, False, False)}:
                raise FieldError(
                    self,
                    names[given.index(True)],
                    f": give either data.{split} (one TSV file) or both data.{split}_source and "
                    f"data.{split}_target.",
                )

    def files(self, split: str) -> tuple[str, ...]:
        """The file or files of "train" or "validation"; none where there is no such data."""
        one, source, target = (getattr(self, split + end) for end in ("", "_source", "_target"))
        return (one,) if one else (source, target) if source else ()
