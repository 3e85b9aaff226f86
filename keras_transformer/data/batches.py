"""Sentence pairs as padded batches of ids: sorted by length, shuffled by a seed, streamed."""

from itertools import count, islice

import tensorflow as tf

from keras_transformer import masks
from keras_transformer.data.corpus import check_alignments, read_pairs
from keras_transformer.errors import InputError
from keras_transformer.text.tokenizer import BEGIN, END, UNKNOWN, Tokenizer
from keras_transformer.text.unknown import UnknownWords

CHUNK = 1000  # pairs that are turned into ids at a time
OPTIONS = tf.data.Options()
# An iterator that ends waits for its tuner (TensorFlow 2.21), which looks up after 10 ms, 20 ms,
# 40 ms and so on: for up to as long again as the iterator has lived.
OPTIONS.autotune.enabled = False


def bucket_lengths(longest: int, gap: int = 2) -> list[int]:
    """The lengths that sequences are padded to: few, so that shapes repeat, and near to each other.

    Args:
        longest: the last of them.
        gap: between two of the short ones. With 2 the padding stays below a tenth or so.

    Example:

    >>> from keras_transformer.data.batches import bucket_lengths
    >>> bucket_lengths(50)
    [8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 44, 48, 50]
    """
    lengths, widen_at = [8], 32
    while lengths[-1] < longest:
        if lengths[-1] == widen_at:  # and at 64, 128, ...
            gap, widen_at = 2 * gap, 2 * widen_at
        lengths.append(lengths[-1] + gap)
    return [length for length in lengths if length < longest] + [longest]


class Batches:
    """A corpus as batches that `model.fit` takes.

    A batch is ({"source": [B, S], "target": [B, T]}, labels [B, T]), int32, padded with 0. The
    source ends with the end id, the target begins with the begin id, and the labels are the target
    one place on. Pairs of like lengths share a batch, and each side is padded to one of a small set
    of lengths. The order depends on the seed and the epoch alone.

    Args:
        files: (tsv,) or (source, target).
        tokenizer: turns both sides into ids.
        tokens_per_batch: a batch has as many sentences as fit into this number of places a side.
        max_tokens: pairs with a longer side are left out.
        seed: decides the order of an epoch; None leaves the batches sorted by length.
        shuffle_pairs: how many pairs of the file are put into batches, and shuffled, together.
        copy_words: how many words of a source that the vocabulary does not know have ids of their
            own; see `UnknownWords`.
        regularization: above 0, each epoch splits sentences into other pieces; see
            `Tokenizer.tokenize`. Batches have as many pairs as with the usual pieces, and so some
            more tokens.
        regularized: "both" sides of a pair, or one of them: "source" or "target".
        alignments: a file of word alignments, "0-0 1-2" for a pair. The inputs then have
            `alignments`, bool [B, T, S]: which source token the token of a label goes with. A pair
            whose words the tokenizer splits or joins otherwise than blanks do has none: the
            numbers of its links would be those of other words.

    Attributes:
        steps: batches in a whole epoch.
        pairs: pairs in a whole epoch.
        tokens: target tokens in a whole epoch, the ends among them.
        too_long, empty: pairs that were left out.
        unaligned: pairs whose alignments were left out.
    """

    def __init__(
        self,
        files: tuple[str, ...],
        tokenizer: Tokenizer,
        tokens_per_batch: int = 4096,
        max_tokens: int = 128,
        seed: int | None = None,
        shuffle_pairs: int = 200_000,
        copy_words: int = 0,
        regularization: float = 0.0,
        regularized: str = "both",
        alignments: str | None = None,
    ):
        self._files = files
        self._tokenizer = tokenizer
        self._tokens_per_batch = tokens_per_batch
        self._seed = seed
        self._chunk = min(CHUNK, shuffle_pairs)
        self._chunks_per_window = shuffle_pairs // self._chunk
        self._lengths = bucket_lengths(max_tokens)
        self._unknown = UnknownWords(tokenizer, copy_words)
        self._regularization = {"source": 0.0, "target": 0.0}
        for side in self._regularization if regularized == "both" else (regularized,):
            self._regularization[side] = regularization
        self._alignments = alignments
        pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
        self._begins = [piece.startswith("▁") for piece in pieces]  # a word
        self._begins[UNKNOWN] = "▁" not in pieces  # then a piece is a whole word
        self._measure()

    def stream(self, epoch: int = 0, step: int = 0) -> tf.data.Dataset:
        """The batches from batch `step` of `epoch` on, epoch after epoch without end."""
        epochs = tf.data.Dataset.counter(start=epoch)
        batches = epochs.flat_map(self.epoch).skip(step).prefetch(tf.data.AUTOTUNE)
        return batches.with_options(OPTIONS)

    def _measure(self):
        """Counts what an epoch has; that also reads the whole corpus once and finds its faults."""
        self.too_long, self.empty, self.tokens = 0, 0, 0
        windows = []  # the padded lengths of their pairs
        self._aligned = []  # whether the words of a pair are those that its links number
        pairs = read_pairs(self._files)
        for number in count():
            if not (chunk := list(islice(pairs, self._chunk))):
                break
            if number % self._chunks_per_window == 0:
                windows.append([])
            sources, targets = zip(*chunk, strict=True)
            words = self._unknown.find(sources)
            source_ids = self._unknown.encode(sources, words)
            target_ids = self._unknown.encode(targets, words)
            if self._alignments is not None:
                numbered = zip(
                    map(self._same_words, sources, source_ids),
                    map(self._same_words, targets, target_ids),
                    strict=True,
                )
                self._aligned += map(all, numbered)
            for lengths in zip(map(len, source_ids), map(len, target_ids), strict=True):
                longest = max(lengths) + 1  # with the end id
                if not min(lengths):
                    self.empty += 1
                elif longest > self._lengths[-1]:
                    self.too_long += 1
                else:
                    windows[-1].append(next(most for most in self._lengths if longest <= most))
                    self.tokens += lengths[1] + 1
        # Sorted by length a window is cut into the same batches in every epoch: that depends on how
        # many pairs there are of each length, and not on which.
        self._cuts = [_cut(sorted(lengths), self._tokens_per_batch) for lengths in windows]
        self.pairs = sum(map(len, windows))
        self.unaligned = self._aligned.count(False)
        self.steps = sum(len(cuts) - 1 for cuts in self._cuts)
        if self.pairs == 0:
            raise InputError(
                f"{' and '.join(self._files)}: no pair is left: {self.empty} have an empty side, "
                f"{self.too_long} are longer than data.max_tokens={self._lengths[-1]} tokens."
            )
        if self._alignments is not None:
            check_alignments(self._alignments, self._files)

    def epoch(self, epoch: int | tf.Tensor = 0) -> tf.data.Dataset:
        """The batches of one epoch."""
        cuts = tf.ragged.constant(self._cuts, tf.int64)
        return (
            self._read()
            .batch(self._chunk)
            .map(self._encode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .batch(self._chunks_per_window)
            .enumerate()
            .flat_map(lambda number, window: self._cut_window(window, cuts[number], epoch, number))
            .apply(tf.data.experimental.assert_cardinality(self.steps))
            .with_options(OPTIONS)
        )

    def _read(self) -> tf.data.Dataset:
        """The lines of the files, which `_measure` has found to be in order."""
        # Not Dataset.from_generator: TensorFlow 2.21 then has glibc give all freed memory back to
        # the system on Python 3.11 (GeneratorDatasetOp), see training/memory.py.
        names = ("pair",) if len(self._files) == 1 else ("source", "target")
        files = dict(zip(names, self._files, strict=True))
        if self._alignments is not None:
            files["alignment"] = self._alignments
        lines = {
            name: tf.data.TextLineDataset(file, "GZIP" if file.endswith(".gz") else "")
            for name, file in files.items()
        }
        if self._alignments is not None:
            lines["aligned"] = tf.data.Dataset.from_tensor_slices(self._aligned)
        return tf.data.Dataset.zip(lines)

    def _encode(self, lines):
        """The ids of a chunk of lines, and the size of each pair; without those left out."""
        if "pair" in lines:
            fields = tf.strings.split(lines.pop("pair"), "\t").to_tensor(shape=[None, 2])
            lines |= {"source": fields[:, 0], "target": fields[:, 1]}
        words = self._unknown.find_in_graph(lines["source"])
        pair = {side: self._unknown.tokenize(lines[side], words) for side in ("source", "target")}
        source, target = (ids.row_lengths() for ids in pair.values())
        longest = tf.maximum(source, target) + 1  # with the end id
        fits = (source > 0) & (target > 0) & (longest <= self._lengths[-1])
        for side, rate in self._regularization.items():
            if rate:
                pair[side] = self._draw(lines[side], pair[side], rate)
        if "alignment" in lines:
            links = tf.where(lines["aligned"], lines["alignment"], "")
            pair["alignment"] = tf.strings.split(links)
        # As a row of one, so that chunks of any number of pairs can be joined.
        pair["size"] = tf.RaggedTensor.from_tensor(self._size(pair)[:, None])
        return {name: tf.ragged.boolean_mask(values, fits) for name, values in pair.items()}

    def _size(self, pair):
        """What pairs are sorted by: the padded length, then how much longer the target is.

        The second makes the shorter sides of a batch alike: 3 % fewer places on Multi30k.
        """
        source, target = (pair[side].row_lengths() for side in ("source", "target"))
        lengths = tf.constant(self._lengths, tf.int64)
        padded = tf.searchsorted(lengths, tf.maximum(source, target) + 1, out_type=tf.int64)
        return 2 * lengths[-1] * padded + target - source  # |target - source| < lengths[-1]

    def _draw(self, lines, usual, rate):
        """The ids of other pieces of the lines, unless those are too many."""
        drawn = self._tokenizer.tokenize(lines, rate)
        fits = drawn.row_lengths() < self._lengths[-1]
        row = tf.range(drawn.nrows())
        return tf.gather(
            tf.concat([drawn, usual], axis=0), tf.where(fits, row, row + drawn.nrows())
        )

    def _cut_window(self, chunks, cuts, epoch, number):
        """The batches of a window of chunks: cut where `cuts` says when sorted by size."""
        pairs = {name: values.merge_dims(0, 1) for name, values in chunks.items()}
        sizes = pairs.pop("size").flat_values
        batches = tf.range(tf.size(cuts) - 1)
        if self._seed is None:
            order = tf.argsort(sizes, stable=True)
        else:
            # The epochs of different seeds are far apart, so that no two runs share an order.
            seed = tf.stack([self._seed * 1_000_003 + tf.cast(epoch, tf.int64), number])
            order = tf.random.experimental.stateless_shuffle(tf.range(tf.size(sizes)), seed)
            order = tf.gather(order, tf.argsort(tf.gather(sizes, order), stable=True))
            batches = tf.random.experimental.stateless_shuffle(batches, seed)

        def batch(place):
            rows = order[cuts[place] : cuts[place + 1]]
            return self._pad({name: tf.gather(values, rows) for name, values in pairs.items()})

        return tf.data.Dataset.from_tensor_slices(batches).map(batch)

    def _pad(self, pair):
        begin = tf.fill([pair["target"].nrows(), 1], BEGIN)
        end = tf.fill([pair["target"].nrows(), 1], END)
        source = self._to_bucket(tf.concat([pair["source"], end], axis=1))
        labels = self._to_bucket(tf.concat([pair["target"], end], axis=1))
        target = self._to_bucket(tf.concat([begin, pair["target"]], axis=1))
        inputs = {"source": source, "target": target}
        if "alignment" in pair:
            inputs["alignments"] = self._align(pair["alignment"], source, labels)
        return inputs, labels

    def _align(self, links, source, labels):
        """Which tokens of source [B, S] and labels [B, T] the links "i-j" [B, None] join."""
        numbers = tf.strings.to_number(tf.strings.split(links, "-"), tf.int32)  # [B, None, 2]
        numbers = numbers.to_tensor(-2, shape=[None, None, 2])[:, None, None]  # of no word
        of_source = self._word_numbers(source)[:, None, :, None]
        of_target = self._word_numbers(labels)[:, :, None, None]
        joined = (of_source == numbers[..., 0]) & (of_target == numbers[..., 1])  # [B, T, S, links]
        return tf.reduce_any(joined, axis=-1)

    def _same_words(self, line, ids):
        """Whether the ids of a line are of as many words as it has between blanks."""
        known = (id if id < len(self._begins) else UNKNOWN for id in ids)
        return sum(self._begins[id] for id in known) == len(line.split())

    def _word_numbers(self, ids):
        """The number of the word that each token is of; -1 for end and padding."""
        known = tf.where(ids < len(self._begins), ids, UNKNOWN)
        words = tf.cumsum(tf.cast(tf.gather(self._begins, known), tf.int32), axis=1) - 1
        return tf.where((ids == END) | (ids == masks.PADDING), -1, words)

    def _to_bucket(self, ids):
        longest = tf.cast(ids.bounding_shape(axis=1), tf.int32)
        lengths = tf.constant(self._lengths)
        length = tf.reduce_min(tf.boolean_mask(lengths, lengths >= longest))
        return ids.to_tensor(shape=tf.stack([-1, length]))  # -1: every row


def _cut(lengths, tokens_per_batch):
    """Where sorted lengths are cut, so that the longest of a batch times its size is within."""
    cuts = [0]
    for place, length in enumerate(lengths):
        if place > cuts[-1] and (place + 1 - cuts[-1]) * length > tokens_per_batch:
            cuts.append(place)
    return [*cuts, len(lengths)] if lengths else cuts
