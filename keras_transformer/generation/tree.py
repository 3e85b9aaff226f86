"""What a beam search did: the tree of its hypotheses."""

from typing import NamedTuple

from keras import ops

from keras_transformer import masks
from keras_transformer.config import DecodingConfig
from keras_transformer.generation.beam import BeamSearch
from keras_transformer.generation.constraints import FORBIDDEN
from keras_transformer.generation.generate import beam_options, constraints, room
from keras_transformer.generation.loop import advance, start
from keras_transformer.text.tokenizer import BEGIN, END


class Node(NamedTuple):
    """A hypothesis at one place of a search.

    Its ids are all that it has written, so that the node it continues is the one whose ids are
    these without the last. `log_probability` is that of all of them; `score` what a hypothesis that
    ended here was ranked by, None for one that went on.
    """

    ids: tuple[int, ...]
    log_probability: float
    score: float | None = None


class Tree(NamedTuple):
    """The hypotheses that a beam search kept at each place, best first, and the ids of the best."""

    places: list[list[Node]]
    best: tuple[int, ...]


class WatchedBeamSearch(BeamSearch):
    """A beam search of one sentence that notes what it ends; for a loop in Python only."""

    def start(self):
        self.ended = []
        return super().start()

    def _keep_best(self, progress, candidates, scores):
        self.ended = _nodes(candidates, scores[0], scores[0])
        return super()._keep_best(progress, candidates, scores)


def trace(step, state, strategy: WatchedBeamSearch, begin: int) -> Tree:
    """Searches as `search` does, place by place in Python, and notes what was kept at each.

    Args:
        step, state, begin: as of `search`.
        strategy: the search, of one sentence.
    """
    carry = start(state, strategy, begin)
    places = []
    while not strategy.is_done(carry[-1]):
        carry = advance(step, strategy, carry)
        progress = carry[-1]
        kept = [*_nodes(progress["record"], progress["totals"][0]), *strategy.ended]
        places.append(sorted(kept, key=lambda node: -node.log_probability))
    (best,) = strategy.results(carry[-1])["ids"][0]
    return Tree(places, _written(best))


def beam_tree(model, source, decoding: DecodingConfig, suppressed=()) -> Tree:
    """The tree of the search for a translation.

    Args:
        model: a `Transformer`, or anything with its `config`, `encode`, `start` and `step`.
        source: ids [1, S] of a sentence with its end id.
        decoding: how to search.
        suppressed: ids that are never written.
    """
    limits, length = room(model, source, decoding)
    align = decoding.coverage_penalty != 0
    memory_keep = masks.keep_tokens(source) if align else None
    options = beam_options(decoding, constraints(decoding, suppressed), memory_keep)
    strategy = WatchedBeamSearch(limits, length, END, **options)
    memory = model.encode(source)
    return trace(
        lambda ids, state, index: model.step(
            ids, state, memory, index=index, return_alignment=align
        ),
        model.start(strategy.num_rows, length, memory),
        strategy,
        BEGIN,
    )


def _nodes(record, exists, scores=None):
    """Rows of a record as nodes, where `exists` is no FORBIDDEN."""
    ids, token_scores = (ops.convert_to_numpy(record[name]) for name in ("ids", "token_scores"))
    exists = ops.convert_to_numpy(exists) > FORBIDDEN / 2
    return [
        Node(
            _written(ids[row]),
            float(token_scores[row].sum()),
            None if scores is None else float(scores[row]),
        )
        for row in exists.nonzero()[0]
    ]


def _written(ids):
    """The ids of a row up to its padding."""
    return tuple(int(one) for one in ops.convert_to_numpy(ids) if one != masks.PADDING)
