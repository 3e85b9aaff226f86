"""The functions of the SavedModel: raw text in, raw text out, with the whole search between."""

import dataclasses
import functools

import tensorflow as tf

from keras_transformer import masks
from keras_transformer.config import DecodingConfig
from keras_transformer.data.batches import bucket_lengths
from keras_transformer.exporting import in_place
from keras_transformer.exporting.streaming import make_streaming
from keras_transformer.exporting.weights import Weights
from keras_transformer.generation.generate import generate, score
from keras_transformer.generation.translate import suppressed_ids
from keras_transformer.text.tokenizer import END, UNKNOWN, Tokenizer
from keras_transformer.text.unknown import UnknownWords

# Nothing here is Python that AutoGraph would have to rewrite; looking for some costs it seconds.
graph_function = functools.partial(tf.function, autograph=False)

TEXT = tf.TensorSpec([None], tf.string, "text")


class Signatures(tf.Module):
    """Everything that a SavedModel needs: the weights, and functions that TensorFlow has traced.

    A row of text that is empty, or only white space, has an empty translation with the score 0.
    Bytes that are not UTF-8 are read as U+FFFD, the replacement character. Of a text with more
    tokens than the model reads the first are read, and `truncated` is True. A batch may have no
    rows. A row's results depend on that row alone.

    Args:
        model: a `Transformer` or an `Ensemble`.
        tokenizer: the one that it was trained with.
        decoding: how `serving_default` and the other signatures search.
    """

    def __init__(self, model, tokenizer: Tokenizer, decoding: DecodingConfig):
        super().__init__("transformer")
        # Behind a function, because TensorFlow would save a Keras model that it finds in a module.
        self._parts = lambda: (model, tokenizer)
        self.decoding = decoding
        self.suppressed = suppressed_ids(tokenizer, decoding)
        self.unknown = UnknownWords(tokenizer, model.config.copy_words)
        self.longest = model.config.max_length - 1  # tokens of a sentence before its end
        self.weights = Weights(model)

        # What several signatures call is traced once.
        ids, words = (tf.TensorSpec([None, None], dtype) for dtype in (tf.int32, tf.string))
        self._read_text = graph_function(self._tokenize, input_signature=[TEXT, words])
        self.find_words = graph_function(self._find_words, input_signature=[TEXT])
        self.write_text = graph_function(self._detokenize, input_signature=[ids, words])
        self.spell = graph_function(self._spell, input_signature=[ids, words])
        self.encode = graph_function(self._encode, input_signature=[ids])
        self._search = graph_function(self._generate, input_signature=[ids])
        self._search_compiled = graph_function(
            self._generate_compiled, input_signature=[ids], jit_compile=True
        )

    @property
    def model(self):
        return self._parts()[0]

    @property
    def tokenizer(self):
        return self._parts()[1]

    def all(self) -> dict:
        """The signatures by name."""
        start, step = make_streaming(self)
        return {
            "serving_default": self.serving_default,
            "greedy": self.greedy,
            "n_best": self.n_best,
            "sample": self.sample,
            "prefixed": self.prefixed,
            "score": self.score,
            "decode_ids": self.decode_ids,
            "decode_ids_compiled": self.decode_ids_compiled,
            "start": start,
            "step": step,
        }

    @graph_function(input_signature=[TEXT])
    def serving_default(self, text):
        """The best translation, by the search that was asked for when the model was exported."""
        source, truncated = self.read(text)
        return self._say(text, self._search(source), truncated)

    @graph_function(input_signature=[TEXT])
    def greedy(self, text):
        """The translation whose every token is the most probable one."""
        source, truncated = self.read(text)
        decoding = dataclasses.replace(self.decoding, beams=1)
        return self._say(text, self._generate(source, decoding), truncated)

    @graph_function(input_signature=[TEXT])
    def n_best(self, text):
        """As many translations as there are beams, with their tokens and what they looked at."""
        source, truncated = self.read(text)
        found = self._generate(source, n_best=self.decoding.beams, alignment=True)
        rows, longest = tf.size(text), tf.reduce_max(found["lengths"])
        beams, words = self.decoding.beams, self.find_words(text)
        ids = tf.reshape(found["ids"][:rows, :, :longest], [rows * beams, longest])
        of_each = tf.repeat(words, beams, axis=0)
        return {
            "text": tf.reshape(self.write_text(ids, of_each), [rows, beams]),
            "score": found["scores"][:rows],
            "tokens": tf.reshape(self.spell(ids, of_each), [rows, beams, longest]),
            "source_tokens": self.spell(source[:rows], words),
            "alignment": found["alignment"][:rows, :, :longest],
            "truncated": truncated[:rows],
        }

    @graph_function(
        input_signature=[
            TEXT,
            tf.TensorSpec([None], tf.float32, "temperature"),
            tf.TensorSpec([None], tf.int32, "top_k"),
            tf.TensorSpec([None], tf.float32, "top_p"),
            tf.TensorSpec([None], tf.int32, "seed"),
        ]
    )
    def sample(self, text, temperature, top_k, top_p, seed):
        """A translation that is drawn; the parameters have one value for each row, or one for all.

        `temperature` 0 is greedy, `top_k` 0 and `top_p` 1 leave all tokens to draw from.
        """
        source, truncated = self.read(text)
        given = dict(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        sampling = {name: _per_row(name, values, text) for name, values in given.items()}
        return self._say(text, self._generate(source, sampling=sampling), truncated)

    @graph_function(input_signature=[TEXT, tf.TensorSpec([None], tf.string, "prefix")])
    def prefixed(self, text, prefix):
        """The best translation that begins with the prefix."""
        source, truncated = self.read(text)
        prefix, cut = self.read(_one_for_each("prefix", prefix, text), text)
        prefix = tf.where(prefix == END, masks.PADDING, prefix)
        if self.decoding.max_length is not None:
            cut |= tf.math.count_nonzero(prefix, axis=1) > self.decoding.max_length
        found = self._generate(source, prefix=prefix)
        return self._say(text, found, truncated | cut)

    @graph_function(input_signature=[TEXT, tf.TensorSpec([None], tf.string, "target")])
    def score(self, text, target):
        """How probable a given translation is, as a whole and token by token."""
        rows = tf.size(text)
        source, truncated = self.read(text)
        target, cut = self.read(_one_for_each("target", target, text), text)
        with self.weights.read(self.model):
            found = score(self.model, source, target, self.decoding)
        return {
            "score": found["scores"][:rows],
            "token_score": found["token_scores"][:rows],
            "tokens": self.spell(target[:rows], self.find_words(text)),
            "truncated": (truncated | cut)[:rows],
        }

    @graph_function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int32, "ids"),
            tf.TensorSpec([None], tf.int32, "lengths"),
        ]
    )
    def decode_ids(self, ids, lengths):
        """`serving_default` between tokenizer and detokenizer: ids of tokens, without the end.

        What stands beyond a row's length is not read. An id that is no token of the vocabulary, or
        one of the special ones, is read as unknown, and cannot be copied.
        """
        source, truncated = self._read_ids(ids, lengths)
        return self._say_ids(ids, self._search(source), truncated)

    @graph_function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int32, "ids"),
            tf.TensorSpec([None], tf.int32, "lengths"),
        ]
    )
    def decode_ids_compiled(self, ids, lengths):
        """`decode_ids` by XLA, for a server that has its compiler.

        Batches are padded to a power of two and sentences to few lengths, so that it compiles once
        for each pair of those.
        """
        source, truncated = self._read_ids(ids, lengths)
        rows, length = tf.shape(source)[0], tf.shape(source)[1]
        more_rows = _at_least(rows, [2**power for power in range(13)]) - rows
        more_places = _at_least(length, bucket_lengths(self.longest + 1, gap=4)) - length
        source = tf.pad(source, [[0, more_rows], [0, more_places]])
        found = {name: value[:rows] for name, value in self._search_compiled(source).items()}
        return self._say_ids(ids, found, truncated)

    def read(self, text, source=None):
        """The ids [B, S] of text [B], each with its end id, and which texts were too long.

        There is always a row, so that what follows needs no thought of empty batches: an empty
        text stands in for none.

        Args:
            text: [B].
            source: the texts that words are copied from, where these are others.
        """
        none = tf.fill([_missing(text)], "")
        text, source = (
            tf.concat([each, none], axis=0) for each in (text, text if source is None else source)
        )
        return self._read_text(text, self.find_words(source))

    def _tokenize(self, text, words):
        return _finish(self.unknown.tokenize(_valid(text), words), self.longest)

    def _find_words(self, text):
        """The words [B, C] of text [B] that a translation can only copy."""
        return self.unknown.find_in_graph(_valid(text))

    def _read_ids(self, ids, lengths):
        """The same for ids [B, S] that have been given."""
        lengths = _one_for_each("lengths", lengths, ids)
        missing = _missing(lengths)
        ids = tf.pad(ids, [[0, missing], [0, 0]])
        lengths = tf.clip_by_value(tf.pad(lengths, [[0, missing]]), 0, tf.shape(ids)[1])
        known = (ids > UNKNOWN) & (ids < self.tokenizer.vocabulary_size)
        ids = tf.where(known, ids, UNKNOWN)
        return _finish(tf.RaggedTensor.from_tensor(ids, lengths), self.longest)

    def _encode(self, source):
        with self.weights.read(self.model):
            return self.model.encode(source)

    def _generate(self, source, decoding=None, **options):
        decoding = decoding or self.decoding
        with self.weights.read(self.model), in_place.by_tensorflow():
            return generate(
                self.model, source, decoding, self.suppressed, encode=self.encode, **options
            )

    def _generate_compiled(self, source):
        with self.weights.read(self.model), in_place.by_xla():
            return generate(self.model, source, self.decoding, self.suppressed, encode=self.encode)

    def _say(self, text, found, truncated):
        """The best of what was found for each row of text."""
        best = self._best(tf.size(text), found, truncated)
        return {"text": self.write_text(best.pop("ids"), self.find_words(text)), **best}

    def _say_ids(self, ids, found, truncated):
        best = self._best(tf.shape(ids)[0], found, truncated)
        longest = tf.reduce_max(tf.concat([best["lengths"], [0]], axis=0))
        return best | {"ids": best["ids"][:, :longest]}

    def _best(self, rows, found, truncated):
        ids = found["ids"][:rows, 0]
        ids = tf.where(ids == END, masks.PADDING, ids)  # [B, L]
        return {
            "ids": ids,
            "lengths": tf.math.count_nonzero(ids, axis=1, dtype=tf.int32),
            "score": found["scores"][:rows, 0],
            "truncated": truncated[:rows],
        }

    def _detokenize(self, ids, words):
        ids = tf.ragged.boolean_mask(ids, (ids != masks.PADDING) & (ids != END))
        return self.unknown.detokenize(ids, words)

    def _spell(self, ids, words):
        """The piece of each id, the end among them; nothing for padding."""
        return tf.where(ids == masks.PADDING, "", self.unknown.spell(ids, words))


def _valid(text):
    return tf.strings.unicode_transcode(text, "UTF-8", "UTF-8")


def _missing(rows):
    """1 if there are no rows, else 0."""
    return tf.cast(tf.size(rows) == 0, tf.int32)


def _finish(ids, longest):
    """Ragged ids [B, None] with their end ids, as a tensor, and which were longer than allowed."""
    truncated = ids.row_lengths() > longest
    ends = tf.fill([ids.nrows(out_type=tf.int32), 1], END)
    return tf.concat([ids[:, :longest], ends], axis=1).to_tensor(masks.PADDING), truncated


def _one_for_each(name, values, rows):
    """The values [B], if there are as many as rows."""
    given, expected = tf.size(values), tf.shape(rows)[0]
    problem = f"{name}: give one for each row. Given, rows:"
    with tf.control_dependencies(
        [tf.debugging.Assert(given == expected, [problem, given, expected])]
    ):
        return tf.identity(values)


def _per_row(name, values, text):
    """A parameter [B] or [1] as one value for each row, and for the one that stands in for none."""
    given, rows = tf.size(values), tf.size(text)
    problem = f"{name}: give one value for each row of text, or one for all. Values, rows:"
    fits = (given == 1) | (given == rows)
    with tf.control_dependencies([tf.debugging.Assert(fits, [problem, given, rows])]):
        values = tf.concat([values, tf.zeros([_missing(values)], values.dtype)], axis=0)
    places = tf.range(tf.maximum(rows, 1))
    return tf.gather(values, tf.where(given == 1, tf.zeros_like(places), places))


def _at_least(size, sizes):
    """The first of the sizes that is not smaller; the size itself where all are."""
    place = tf.searchsorted(sizes, [size])[0]
    return tf.concat([sizes, [size]], axis=0)[place]
