"""What a run minimises, as a Keras model around the Transformer."""

import dataclasses
from itertools import pairwise

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.config import MethodsConfig
from keras_transformer.text.tokenizer import BEGIN, END, UNKNOWN
from keras_transformer.training.guidance import alignment_loss, diagonal_loss
from keras_transformer.training.loss import (
    cross_entropy,
    is_most_probable,
    smoothed_cross_entropy,
    token_weight,
)
from keras_transformer.training.projected_loss import (
    projected_best,
    projected_cross_entropy,
)
from keras_transformer.training.target_input import (
    gold_probability,
    mix_in_passes,
    mix_in_sequence,
)


@keras.saving.register_keras_serializable("keras_transformer")
class Objective(keras.Model):
    """A Transformer and what it is trained for; `fit` it, then use or save its `transformer`.

    `transformer.fit` with a `LabelSmoothedCrossEntropy` minimises the same from whole logits. Here
    the loss sees the decoder's outputs: it need not keep the logits, and the methods of
    `MethodsConfig` find what they need.

    Args:
        transformer: the `Transformer` to train.
        label_smoothing: the share of each label that is spread over the vocabulary.
        methods: what else to do.
        parts: parts of its rows that a batch of training is computed in. None waits for another,
            so that a core can have each: see `share_cores`.

    Call arguments:
        inputs: a dict of `source` [B, S], `target` [B, T] and `labels` [B, T], and `alignments`,
            bool [B, T, S], where the methods need them.

    Returns:
        A dict of scalars: the `loss`, and means over the batch's `tokens`.

    Example:

    >>> import keras, numpy as np
    >>> from keras_transformer import ModelConfig, Objective, Transformer
    >>> model = Transformer(ModelConfig.preset("tiny", vocabulary_size=100))
    >>> objective = Objective(model, label_smoothing=0.1)
    >>> objective.compile(keras.optimizers.Adam(1e-3))
    >>> ids = np.random.default_rng(1).integers(4, 100, (8, 6))
    >>> history = objective.fit({"source": ids, "target": ids, "labels": ids}, verbose=0)
    >>> sorted(history.history)
    ['accuracy', 'loss', 'perplexity']
    """

    def __init__(self, transformer, label_smoothing=0.0, methods=None, parts=1, **kwargs):
        super().__init__(**kwargs)
        self.transformer = transformer
        self.label_smoothing = label_smoothing
        self.methods = methods or MethodsConfig()
        self.parts = parts
        if self.methods.guided_attention:
            transformer.check_alignment("guided_attention")
        self.seed_generator = keras.random.SeedGenerator()
        self.batches = self.add_weight(name="batches", dtype="int32", trainable=False)
        self.means = [
            keras.metrics.Mean(name) for name in ("mean_loss", "accuracy", "cross_entropy")
        ]
        self.built = True  # as the Transformer is

    def call(self, inputs, training=False):
        if training:
            self.batches.assign_add(1)
        if not training or self.parts == 1:
            return self._of_rows(inputs, training)
        rows = ops.shape(inputs["labels"])[0]
        cuts = pairwise(rows * part // self.parts for part in range(self.parts + 1))
        parts = [{name: x[first:end] for name, x in inputs.items()} for first, end in cuts]
        return _mean([self._of_rows(part, training) for part in parts])

    def _of_rows(self, inputs, training):
        """The results, computed at once."""
        source, target, labels = (inputs[name] for name in ("source", "target", "labels"))
        methods, read = self.methods, source
        if training:
            read = self._drop_words(source, methods.source_word_dropout)
            target = self._mix(source, read, target)
            target = self._drop_words(target, methods.target_word_dropout)
        twice = training and methods.r_drop > 0
        if twice:
            source, read, target, labels = (
                ops.concatenate([x, x]) for x in (source, read, target, labels)
            )
        guided = training and methods.guided_attention > 0
        copying = self.transformer.pointer is not None
        x, scores = self.transformer.decode(read, target, return_cross_scores=guided or copying)
        if copying:  # from the source as it is
            x = self.transformer.predict_tokens(x, scores, source)
            results = self._results(x, labels)
        else:
            results = self._projected_results(x, labels, 1 + twice)
        if twice and copying:
            results["loss"] += methods.r_drop / 4 * _divergence(x, labels)
        if guided:
            alignment = self.transformer.alignment(scores)
            if methods.guidance == "diagonal":
                loss = diagonal_loss(alignment, source, labels, methods.guidance_width)
            else:
                given = inputs["alignments"]
                given = ops.concatenate([given] * (1 + twice))
                loss = alignment_loss(alignment, given, labels)
            results["loss"] += methods.guided_attention * loss
        return results

    def get_config(self):
        return {
            "transformer": keras.saving.serialize_keras_object(self.transformer),
            "label_smoothing": self.label_smoothing,
            "methods": dataclasses.asdict(self.methods),
            "parts": self.parts,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        transformer = keras.saving.deserialize_keras_object(config["transformer"])
        methods = MethodsConfig(**config["methods"])
        return cls(**{**config, "transformer": transformer, "methods": methods})

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return y_pred["loss"]

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        values = y_pred | {"mean_loss": y_pred["loss"]}
        for metric in self.means:
            metric.update_state(values[metric.name], sample_weight=y_pred["tokens"])
        return self.get_metrics_result()

    def get_metrics_result(self):
        results = super().get_metrics_result()
        results["loss"] = results.pop("mean_loss")  # Keras's own counts sentences, not tokens
        results["perplexity"] = ops.exp(results.pop("cross_entropy"))
        return results

    def _results(self, log_p, labels):
        """From the model's whole outputs [B, T, V]."""
        weight, tokens = _weight(labels)
        by_place = {
            "loss": smoothed_cross_entropy(labels, log_p, self.label_smoothing),
            "cross_entropy": cross_entropy(labels, log_p),
            "accuracy": ops.cast(is_most_probable(labels, log_p), "float32"),
        }
        means = {name: ops.sum(weight * _rows(values)) for name, values in by_place.items()}
        return means | {"tokens": tokens}

    def _projected_results(self, x, labels, passes):
        """The same from the decoder's outputs [B, T, D]: B rows, or the same rows in two passes."""
        labels = ops.split(labels, passes)[0]
        weight, tokens = _weight(labels)
        loss, cross_entropy, accuracy = projected_cross_entropy(
            ops.reshape(x, (passes, -1, x.shape[-1])), self._table(x), _rows(labels), weight,
            self.label_smoothing, agreement=self.methods.r_drop / 4 if passes == 2 else 0.0,
        )  # fmt: skip
        return {
            "loss": loss, "cross_entropy": cross_entropy, "accuracy": accuracy, "tokens": tokens
        }  # fmt: skip

    def _table(self, x):
        return ops.cast(self.transformer.output_table, x.dtype)

    def _drop_words(self, ids, rate):
        """Ids [B, T] of which a share is unknown; begin, end and padding stay."""
        if not rate:
            return ids
        drawn = keras.random.uniform(ops.shape(ids), seed=self.seed_generator) < rate
        word = (ids != masks.PADDING) & (ids != BEGIN) & (ids != END)
        return ops.where(drawn & word, UNKNOWN, ids)

    def _mix(self, source, read, gold):
        """What the decoder reads, of the gold target [B, T]: some of it, or its own predictions.

        Those are made of what the encoder reads, and copy from the source as it is.
        """
        methods, how, model = self.methods, self.methods.target_input, self.transformer
        if how == "gold":
            return gold
        if how == "free_running":
            return mix_in_sequence(model, self._encode(source, read), gold, gold < 0)  # never
        probability = gold_probability(
            self.batches,
            methods.sampling_decay,
            methods.decay_k,
            methods.sampling_c,
            methods.sampling_floor,
        )
        use_gold = keras.random.uniform(ops.shape(gold), seed=self.seed_generator) < probability
        if how == "sequential":
            return mix_in_sequence(model, self._encode(source, read), gold, use_gold)

        def predict(target):
            copying = model.pointer is not None
            x, scores = model.decode(read, target, return_cross_scores=copying)
            if copying:
                log_p = model.predict_tokens(x, scores, source)
                return ops.cast(ops.argmax(log_p, axis=-1), "int32")
            return ops.reshape(projected_best(_rows(x), self._table(x)), ops.shape(target))

        passes = methods.sampling_passes if how == "parallel" else 1
        return mix_in_passes(predict, gold, use_gold, passes)

    def _encode(self, source, read):
        memory = self.transformer.encode(read)
        return memory if self.transformer.pointer is None else memory | {"source": source}


def _mean(parts):
    """The results of a batch, from those of its parts."""
    tokens = sum(part["tokens"] for part in parts)
    results = {
        name: sum(part[name] * part["tokens"] for part in parts) / ops.maximum(tokens, 1.0)
        for name in parts[0]
    }
    return results | {"tokens": tokens}


def _divergence(log_p, labels):
    """Of the two halves of a batch that was passed twice: KL(p || q) + KL(q || p), from log P."""
    weight, _ = _weight(ops.split(labels, 2)[0])
    one, other = map(_rows, ops.split(log_p, 2))
    apart = ops.sum((ops.exp(one) - ops.exp(other)) * (one - other), axis=-1)
    return ops.sum(weight * apart)


def _weight(labels):
    """What each place [P] counts in a mean over the tokens, and how many tokens there are."""
    weight = _rows(token_weight(labels, None, "float32"))
    tokens = ops.sum(weight)
    return weight / ops.maximum(tokens, 1.0), tokens


def _rows(x):
    """[B, T, ...] -> [B T, ...]."""
    return ops.reshape(x, (-1, *x.shape[2:]))
