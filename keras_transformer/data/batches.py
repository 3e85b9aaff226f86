"""Sentence pairs as padded batches of ids: bucketed by length, shuffled by a seed, streamed."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import tensorflow as tf

from keras_transformer.data.corpus import read_pairs
from keras_transformer.errors import InputError
from keras_transformer.text.tokenizer import BEGIN, END, Tokenizer

CHUNK = 1000  # pairs read and handed to TensorFlow at a time


def bucket_lengths(longest: int) -> list[int]:
    """The lengths that sequences are padded to: few, so that shapes repeat, and near to each other.

    Example:

    >>> from keras_transformer.data.batches import bucket_lengths
    >>> bucket_lengths(50)
    [8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 44, 48, 50]
    """
    lengths, gap = [8], 2
    while lengths[-1] < longest:
        if lengths[-1] == 16 * gap:  # at 32, 64, 128, ...: the padding stays below a tenth or so
            gap *= 2
        lengths.append(lengths[-1] + gap)
    return [length for length in lengths if length < longest] + [longest]


class Batches:
    """A corpus as batches that `model.fit` takes.

    A batch is ({"source": [B, S], "target": [B, T]}, labels [B, T]), int32, padded with 0. The
    source ends with the end id, the target begins with the begin id, and the labels are the target
    one place on. Pairs of like length share a batch, and each side is padded to one of a small set
    of lengths. The order depends on the seed, the epoch
    and TensorFlow's global seed, which `keras.utils.set_random_seed` sets.

    Args:
        files: (tsv,) or (source, target).
        tokenizer: turns both sides into ids.
        tokens_per_batch: a batch has as many sentences as fit into this number of places a side.
        max_tokens: pairs with a longer side are left out.
        seed: decides the order of an epoch; None leaves the pairs in the order of the file.
        shuffle_pairs: how many pairs the shuffling has in view at once.

    Attributes:
        steps: batches in a whole epoch.
        pairs: pairs in a whole epoch.
        tokens: target tokens in a whole epoch, the ends among them.
        too_long, empty: pairs that were left out.
    """

    def __init__(
        self,
        files: tuple[str, ...],
        tokenizer: Tokenizer,
        tokens_per_batch: int = 4096,
        max_tokens: int = 128,
        seed: int | None = None,
        shuffle_pairs: int = 200_000,
    ):
        self._files = files
        self._tokenizer = tokenizer
        self._seed = seed
        self._shuffle_pairs = shuffle_pairs
        self._lengths = bucket_lengths(max_tokens)
        self._batch_sizes = [max(1, tokens_per_batch // length) for length in self._lengths]
        self._measure()

    def stream(self, epoch: int = 0, step: int = 0) -> tf.data.Dataset:
        """The batches from batch `step` of `epoch` on, epoch after epoch without end."""
        epochs = tf.data.Dataset.counter(start=epoch)
        return epochs.flat_map(self.epoch).skip(step).prefetch(tf.data.AUTOTUNE)

    def _measure(self):
        """Counts what an epoch has; that also reads the whole corpus once and finds its faults."""
        buckets, self.too_long, self.empty, self.tokens = Counter(), 0, 0, 0
        for source, target in self._chunks():
            source_ids, target_ids = map(self._tokenizer.encode, (source, target))
            lengths = zip(map(len, source_ids), map(len, target_ids), strict=True)
            for source_length, target_length in lengths:
                longest = max(source_length, target_length) + 1  # with the end id
                if not (source_length and target_length):
                    self.empty += 1
                elif longest > self._lengths[-1]:
                    self.too_long += 1
                else:
                    buckets[next(i for i, most in enumerate(self._lengths) if longest <= most)] += 1
                    self.tokens += target_length + 1
        self.pairs = buckets.total()
        self.steps = sum(-(-count // self._batch_sizes[i]) for i, count in buckets.items())
        if self.pairs == 0:
            raise InputError(
                f"{' and '.join(self._files)}: no pair is left: {self.empty} have an empty side, "
                f"{self.too_long} are longer than data.max_tokens={self._lengths[-1]} tokens."
            )

    def _chunks(self) -> Iterator[tuple[list[str], list[str]]]:
        pairs = read_pairs(self._files)
        while chunk := list(islice(pairs, CHUNK)):
            sources, targets = zip(*chunk, strict=True)
            yield list(sources), list(targets)

    def _pairs(self) -> tf.data.Dataset:
        """The pairs of the files, which `_measure` has found to be in order."""
        # Not Dataset.from_generator: TensorFlow 2.21 then has glibc give all freed memory back to
        # the system on Python 3.11 (GeneratorDatasetOp), see training/memory.py.
        lines = [
            tf.data.TextLineDataset(file, "GZIP" if file.endswith(".gz") else "")
            for file in self._files
        ]
        if len(lines) == 2:
            return tf.data.Dataset.zip(*lines)

        def split(line):
            fields = tf.strings.split(line, "\t")
            return fields[0], fields[1]

        return lines[0].map(split, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def epoch(self, epoch: int | tf.Tensor = 0) -> tf.data.Dataset:
        """The batches of one epoch."""
        pairs = self._pairs()
        if self._seed is not None:
            # The epochs of different seeds are far apart, so that no two runs share an order.
            pairs = pairs.shuffle(self._shuffle_pairs, seed=self._seed * 1_000_003 + epoch)
        lengths = tf.constant(self._lengths, tf.int64)
        batch_sizes = tf.constant(self._batch_sizes, tf.int64)

        def bucket(source, target):
            longest = tf.cast(tf.maximum(tf.size(source), tf.size(target)), tf.int64) + 1
            return tf.searchsorted(lengths, longest[None], out_type=tf.int64)[0]

        def fits(source, target):
            return (
                (tf.size(source) > 0)
                & (tf.size(target) > 0)
                & (bucket(source, target) < len(self._lengths))
            )

        return (
            pairs.batch(CHUNK)
            .map(self._encode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .unbatch()
            .filter(fits)
            .group_by_window(
                key_func=bucket,
                reduce_func=lambda key, window: window.ragged_batch(batch_sizes[key]),
                window_size_func=lambda key: batch_sizes[key],
            )
            .map(self._pad, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .apply(tf.data.experimental.assert_cardinality(self.steps))
        )

    def _encode(self, source, target):
        return self._tokenizer.tokenize(source), self._tokenizer.tokenize(target)

    def _pad(self, source, target):
        begin = tf.fill([target.nrows(), 1], BEGIN)
        end = tf.fill([target.nrows(), 1], END)
        source = self._to_bucket(tf.concat([source, end], axis=1))
        labels = self._to_bucket(tf.concat([target, end], axis=1))
        target = self._to_bucket(tf.concat([begin, target], axis=1))
        return {"source": source, "target": target}, labels

    def _to_bucket(self, ids):
        longest = tf.cast(ids.bounding_shape(axis=1), tf.int32)
        lengths = tf.constant(self._lengths)
        length = tf.reduce_min(tf.boolean_mask(lengths, lengths >= longest))
        return ids.to_tensor(shape=tf.stack([-1, length]))  # -1: every row
