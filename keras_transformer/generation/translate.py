"""Sentences in, sentences out."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.config import DecodingConfig
from keras_transformer.data.batches import bucket_lengths
from keras_transformer.errors import InputError
from keras_transformer.generation.generate import Ensemble, generate, score
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import END, Tokenizer
from keras_transformer.text.unknown import UnknownWords


class Hypothesis(NamedTuple):
    """One translation of a line.

    Its tokens are those of the model, the end among them where it was written. Its score is
    log P(Y | X) / lp(Y), that of a token its log P. The alignment, of translations that were
    searched for, has a row a token and a column a token of the source.
    """

    text: str
    score: float
    tokens: list[str]
    token_scores: list[float]
    alignment: np.ndarray | None = None


class Translator:
    """Translates lines of text with a trained model.

    Args:
        model: a `Transformer`, or several of one vocabulary, whose probabilities are averaged.
        tokenizer: the one that they were trained with.
        decoding: how to search; by default with 4 beams.
        tokens_per_batch: lines of like length are translated together, up to this many places.

    Example:

    >>> from keras_transformer import ModelConfig, Tokenizer, Transformer, Translator
    >>> tokenizer = Tokenizer.learn(["to be or not to be"] * 9, vocabulary_size=11, kind="char")
    >>> model = Transformer(ModelConfig.preset("tiny", vocabulary_size=11))
    >>> translator = Translator(model, tokenizer)
    >>> len(translator(["to be", "or not"]))  # untrained, so nonsense
    2
    >>> best, second = translator.n_best(["to be"], 2)[0]
    >>> best.score >= second.score
    True
    """

    def __init__(
        self,
        model: Transformer | Sequence[Transformer],
        tokenizer: Tokenizer,
        decoding: DecodingConfig | None = None,
        tokens_per_batch: int = 4096,
    ):
        models = model if isinstance(model, Sequence) else [model]
        self.model = models[0] if len(models) == 1 else Ensemble(models)
        check_vocabulary(self.model, tokenizer)
        self.tokenizer = tokenizer
        self.unknown = UnknownWords(tokenizer, self.model.config.copy_words)
        self.decoding = decoding or DecodingConfig()
        self.tokens_per_batch = tokens_per_batch
        self.max_length = self.model.config.max_length
        suppressed = suppressed_ids(tokenizer, self.decoding)
        # Kept, because Keras compiles each of them anew; one for every form of its inputs.
        self._searcher = functools.cache(
            lambda n_best, details, with_prefix: Searcher(
                self.model, self.decoding, suppressed, n_best, details
            )
        )
        self._scorer = Scorer(self.model, self.decoding)

    def __call__(self, lines: Sequence[str], prefixes: Sequence[str] | None = None) -> list[str]:
        """The translation of each line; of an empty line, an empty one.

        Of a line with more than the model's max_length tokens, only that many are read.

        Args:
            lines: what to translate.
            prefixes: what each translation begins with.
        """
        words = self.unknown.find(lines)
        results = self._search(lines, words, prefixes, n_best=1, details=False)
        return [self._text(ids[0], known) for (ids, *_), known in zip(results, words, strict=True)]

    def n_best(
        self, lines: Sequence[str], n: int, prefixes: Sequence[str] | None = None
    ) -> list[list[Hypothesis]]:
        """The n best translations of each line, best first, with all that is known of them."""
        if n > 1 and self.decoding.temperature > 0:
            raise InputError("Drawing gives one translation: leave decoding.temperature out.")
        if not 1 <= n <= self.decoding.beams:
            raise InputError(f"{n} best of {self.decoding.beams} beams: ask for 1 to that many.")
        words = self.unknown.find(lines)
        results = self._search(lines, words, prefixes, n_best=n, details=True)
        return [
            [
                self._hypothesis(known, *hypothesis)
                for hypothesis in zip(*result, strict=True)
                if np.isfinite(hypothesis[1])
            ]
            for result, known in zip(results, words, strict=True)
        ]

    def score(self, lines: Sequence[str], targets: Sequence[str]) -> list[Hypothesis]:
        """The given translation of each line, with its scores."""
        words = self.unknown.find(lines)
        sources, targets = self._ids(lines, words), self._ids(targets, words)
        results = [None] * len(sources)
        for rows in self._batch(
            [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]
        ):
            batch = self._pad([sources[row] for row in rows])
            written = self._pad([targets[row] for row in rows])
            found = self._scorer.predict_on_batch({"source": batch, "target": written})
            for row, *scores in zip(rows, *found, strict=True):
                results[row] = self._hypothesis(words[row], np.array(targets[row]), *scores)
        return results

    def _search(self, lines, words, prefixes, n_best, details):
        """For each line, arrays of ids and, for `details`, scores, token scores and alignments."""
        sources = self._ids(lines, words)
        given = [[] for _ in sources]
        if prefixes is not None:
            if len(prefixes) != len(lines):
                raise InputError(
                    f"{len(prefixes)} prefixes for {len(lines)} lines: give one for each, perhaps "
                    "an empty one."
                )
            given = [ids[: self.max_length - 1] for ids in self.unknown.encode(prefixes, words)]
        searcher = self._searcher(n_best, details, prefixes is not None)
        results = [None] * len(sources)
        for rows in self._batch([len(ids) * self.decoding.beams for ids in sources]):
            inputs = {
                "source": self._pad([sources[row] for row in rows]),
                "seed": np.array([self.decoding.seed + row for row in rows], "int32"),
            }
            if prefixes is not None:
                inputs["prefix"] = self._pad([given[row] for row in rows])
            found = searcher.predict_on_batch(inputs)
            for place, row in enumerate(rows):
                ids, *beside = [part[place] for part in found]
                if details:  # the columns of the source's own tokens
                    beside[-1] = beside[-1][..., : len(sources[row])]
                results[row] = [ids, *beside]
        return results

    def _ids(self, lines, words):
        """The ids of each line, as many as the model reads, and the end."""
        return [[*ids[: self.max_length - 1], END] for ids in self.unknown.encode(lines, words)]

    def _batch(self, lengths):
        """Rows of like length, as many as fit into a batch."""
        rows = []
        for length, row in sorted((length, row) for row, length in enumerate(lengths)):
            if rows and length * (len(rows) + 1) > self.tokens_per_batch:
                yield rows
                rows = []
            rows.append(row)
        if rows:
            yield rows

    def _pad(self, sequences):
        longest = max(map(len, sequences))
        length = next(most for most in bucket_lengths(self.max_length) if most >= longest)
        batch = np.zeros((len(sequences), length), "int32")
        for row, ids in enumerate(sequences):
            batch[row, : len(ids)] = ids
        return batch

    def _hypothesis(self, words, ids, score, token_scores, alignment=None):
        length = np.count_nonzero(ids)
        return Hypothesis(
            self._text(ids, words),
            float(score),
            self.unknown.pieces(ids[:length].tolist(), words),
            token_scores[:length].tolist(),
            None if alignment is None else alignment[:length],
        )

    def _text(self, ids, words):
        return self.unknown.decode([[one for one in ids.tolist() if one and one != END]], [words])[
            0
        ]


def check_vocabulary(model, tokenizer: Tokenizer) -> None:
    """Refuses a tokenizer that is not the model's."""
    config = model.config
    sizes = {config.vocabulary_size, config.target_vocabulary_size or config.vocabulary_size}
    if sizes != {tokenizer.vocabulary_size}:
        raise InputError(
            f"The model has {' and '.join(map(str, sorted(sizes)))} tokens, the tokenizer "
            f"{tokenizer.vocabulary_size}. Give the one tokenizer that source and target were "
            "trained with."
        )


def suppressed_ids(tokenizer: Tokenizer, decoding: DecodingConfig) -> list[int]:
    """The ids of the pieces that `decoding.suppress` names."""
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
    ids = {piece: number for number, piece in enumerate(pieces)}
    for piece in decoding.suppress.split():
        if piece not in ids:
            raise InputError(f"decoding.suppress: the vocabulary has no piece {piece!r}.")
    return [ids[piece] for piece in decoding.suppress.split()]


class Searcher(keras.Model):
    """The search as a Keras model, so that Keras compiles the loop on any backend."""

    def __init__(self, model, decoding, suppressed, n_best, details):
        super().__init__()
        self.model = model
        self.decoding = decoding
        self.suppressed = suppressed
        self.n_best = n_best
        self.details = details

    def call(self, inputs):
        results = generate(
            self.model,
            inputs["source"],
            self.decoding,
            self.suppressed,
            self.n_best,
            inputs.get("prefix"),
            self._sampling(inputs["seed"]),
            scores=self.details,
            alignment=self.details,
        )
        names = ("ids", "scores", "token_scores", "alignment") if self.details else ("ids",)
        return [results[name] for name in names]

    def _sampling(self, seed):
        if self.decoding.temperature <= 0:
            return None
        everywhere = ops.ones_like(seed)
        return {
            "temperature": ops.cast(everywhere, "float32") * self.decoding.temperature,
            "top_k": everywhere * self.decoding.top_k,
            "top_p": ops.cast(everywhere, "float32") * self.decoding.top_p,
            "seed": seed,
        }


class Scorer(keras.Model):
    """The scoring of given pairs, compiled likewise."""

    def __init__(self, model, decoding):
        super().__init__()
        self.model = model
        self.decoding = decoding

    def call(self, inputs):
        found = score(self.model, inputs["source"], inputs["target"], self.decoding)
        return [found["scores"], found["token_scores"]]
