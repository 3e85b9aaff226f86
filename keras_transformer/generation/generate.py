"""A model, source ids and how to search: target ids and their scores."""

import math

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.config import DecodingConfig
from keras_transformer.errors import InputError
from keras_transformer.generation.beam import BeamSearch, length_penalty
from keras_transformer.generation.choose import Greedy, Sampling, log_probability
from keras_transformer.generation.constraints import Constraints
from keras_transformer.generation.loop import search
from keras_transformer.text.tokenizer import BEGIN, END

# A target has room for twice as many tokens as its source and then some, whatever the language.
ROOM = (2, 16)


def generate(
    model,
    source,
    decoding: DecodingConfig,
    suppressed=(),
    n_best=1,
    prefix=None,
    sampling=None,
    scores=True,
    alignment=False,
    encode=None,
):
    """Translates source ids.

    Args:
        model: a `Transformer`, or anything with its `config`, `encode`, `start` and `step`.
        source: ids [B, S], each sentence with its end id, then padding.
        decoding: how to search.
        suppressed: ids that are never written, beside padding and begin.
        n_best: how many targets of each source, at most `decoding.beams`.
        prefix: ids [B, P] that the targets begin with, then padding.
        sampling: draws instead of searching: a dict of `temperature`, `top_k`, `top_p`, `seed`, [B]
            each, as of `Sampling`.
        scores: whether scores are wanted, which greedy search can do without.
        alignment: whether alignments are wanted.
        encode: called instead of the model's own `encode`.

    Returns:
        A dict of `ids` [B, n_best, L], best first, each up to and including its end id, then
        padding; `lengths` [B, n_best] of them; and as asked for `scores` [B, n_best], log P(Y | X)
        / lp(Y), `token_scores` [B, n_best, L], log P of each token, and `alignment`
        [B, n_best, L, S], what was looked at. The target of an empty source is empty. Where fewer
        than `n_best` targets can be written, the others are empty, with a score of minus infinity.
    """
    if n_best > (1 if sampling is not None else decoding.beams):
        raise ValueError(f"n_best={n_best} of {decoding.beams} beams: search with more beams.")
    limits, length = room(model, source, decoding, prefix)
    allowed = constraints(decoding, suppressed, prefix)
    memory = (encode or model.encode)(source)
    alone = sampling is not None or decoding.beams == 1
    align = alignment or (decoding.coverage_penalty != 0 and not alone)
    if alone:
        memory_length = ops.shape(source)[1] if align else None
        options = dict(constraints=allowed, scores=scores, memory_length=memory_length)
        if sampling is None:
            strategy = Greedy(limits, length, END, **options)
        else:
            strategy = Sampling(limits, length, END, **sampling, **options)
    else:
        memory_keep = masks.keep_tokens(source) if align else None
        strategy = BeamSearch(
            limits, length, END, n_best=n_best, **beam_options(decoding, allowed, memory_keep)
        )
    results = search(
        lambda ids, state, index: model.step(
            ids, state, memory, index=index, return_alignment=align
        ),
        model.start(strategy.num_rows, length, memory),
        strategy,
        BEGIN,
    )
    if not alignment:
        results.pop("alignment", None)
    results["lengths"] = _lengths(results["ids"])
    if "token_scores" in results:
        # Whatever else the search may have ranked by. Where it found no more there is no score.
        ranks = results.get("scores", 0.0)
        scores = _normalise(results["token_scores"], results["lengths"], decoding)
        results["scores"] = ops.where(ranks > -float("inf"), scores, -float("inf"))
    return results


def beam_options(decoding: DecodingConfig, allowed: Constraints, memory_keep=None) -> dict:
    """What `BeamSearch` is told, by its config."""
    return dict(
        beams=decoding.beams,
        alpha=decoding.length_penalty,
        offset=decoding.length_offset,
        coverage=decoding.coverage_penalty,
        constraints=allowed,
        memory_keep=memory_keep,
    )


def constraints(decoding: DecodingConfig, suppressed=(), prefix=None) -> Constraints:
    """What a target may say, by its config."""
    return Constraints(
        END,
        (masks.PADDING, BEGIN, *suppressed),
        decoding.min_length,
        decoding.no_repeat_ngram,
        decoding.repetition_penalty,
        prefix,
    )


def room(model, source, decoding: DecodingConfig, prefix=None):
    """The most tokens of each target [B], 0 where the source [B, S] is empty, and of any of them.

    A row's limit is its own, so that it does not depend on the rows beside it.
    """
    times, more = ROOM
    most = model.config.max_length
    if decoding.max_length is not None:
        most = min(most, decoding.max_length + 1)  # and the end
    sizes = _lengths(source)  # [B], the end among them
    limits = times * sizes + more
    length = times * ops.shape(source)[1] + more
    if prefix is not None:
        limits = limits + _lengths(prefix)
        length = length + ops.shape(prefix)[1]
    limits = ops.where(sizes > 1, ops.minimum(limits, most), 0)
    length = min(length, most) if isinstance(length, int) else ops.minimum(length, most)
    return limits, length


def score(model, source, target, decoding: DecodingConfig):
    """Scores given targets.

    Args:
        model: a `Transformer` or an `Ensemble`.
        source: ids [B, S], each sentence with its end id, then padding.
        target: ids [B, T], likewise.
        decoding: for its length penalty.

    Returns:
        A dict of `scores` [B], log P(Y | X) / lp(Y), and `token_scores` [B, T], log P of each.
    """
    shifted = ops.pad(target, ((0, 0), (1, 0)), constant_values=BEGIN)[:, :-1]
    logits = model({"source": source, "target": shifted})  # [B, T, V]
    rows = ops.reshape(logits, (-1, logits.shape[-1]))
    token_scores = log_probability(rows, ops.reshape(target, (-1,)))
    token_scores = ops.reshape(token_scores, ops.shape(target))
    token_scores = ops.where(masks.keep_tokens(target), token_scores, 0.0)
    scores = _normalise(token_scores, _lengths(target), decoding)
    return {"scores": scores, "token_scores": token_scores}


class Ensemble(keras.Model):
    """Several models of one vocabulary that write together: the mean of their probabilities.

    Has what decoding needs of a `Transformer`: `encode`, `start`, `step` and `config`, and can be
    called on given pairs.

    Args:
        models: the `Transformer`s.

    Example:

    >>> from keras_transformer import Ensemble, ModelConfig, Tokenizer, Transformer, Translator
    >>> tokenizer = Tokenizer.learn(["to be or not to be"] * 9, vocabulary_size=11, kind="char")
    >>> config = ModelConfig.preset("tiny", vocabulary_size=11)
    >>> both = Ensemble([Transformer(config), Transformer(config)])
    >>> len(Translator(both, tokenizer)(["to be"]))
    1
    """

    def __init__(self, models, **kwargs):
        super().__init__(**kwargs)
        self.models = list(models)
        if len({model.config.copy_words for model in self.models}) > 1:
            raise InputError("The models of an ensemble have to have the same model.copy_words.")
        self.built = True  # as they are
        self.config = min((model.config for model in models), key=lambda config: config.max_length)

    def call(self, inputs):
        return self._mean([model(inputs) for model in self.models])

    def encode(self, source):
        return [model.encode(source) for model in self.models]

    def start(self, batch_size, length, memory):
        return [
            model.start(batch_size, length, of_model)
            for model, of_model in zip(self.models, memory, strict=True)
        ]

    def step(self, target, state, memory, index, return_alignment=False):
        steps = [
            model.step(target, *parts, index=index, return_alignment=return_alignment)
            for model, *parts in zip(self.models, state, memory, strict=True)
        ]
        logits, state, *alignments = zip(*steps, strict=True)
        alignment = [sum(parts) / len(self.models) for parts in alignments]
        return self._mean(logits), list(state), *alignment

    def _mean(self, logits):
        """The logarithm of the mean probability."""
        logs = [ops.log_softmax(ops.cast(one, "float32"), axis=-1) for one in logits]
        return ops.logsumexp(ops.stack(logs), axis=0) - math.log(len(logs))


def _lengths(ids):
    """How many tokens each row of ids [..., L] holds."""
    return ops.sum(ops.cast(masks.keep_tokens(ids), "int32"), axis=-1)


def _normalise(token_scores, lengths, decoding):
    total = ops.sum(token_scores, axis=-1)
    return total / length_penalty(lengths, decoding.length_penalty, decoding.length_offset)
