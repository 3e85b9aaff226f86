"""How a trained model writes."""

import dataclasses

from keras_transformer.config.checks import check


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """How a trained model writes; by default as in the paper (section 6.1).

    Args:
        beams: how many hypotheses beam search keeps; 1 for greedy search.
        length_penalty: alpha of ((k + |Y|) / (k + 1))^alpha, which divides log P(Y); 0 for none.
        length_offset: k, 5 as in Wu et al. 2016; 0 for |Y|^alpha, as other toolkits have it.
        coverage_penalty: beta of Wu et al. 2016, for source words that were not looked at.
        min_length: the fewest tokens of a target, the end not counted.
        max_length: the most; left out, the model's max_length. A target also has at most twice as
            many tokens as its source and 16 more.
        no_repeat_ngram: no sequence of this many tokens is written twice; 0 for no limit.
        repetition_penalty: above 1, what has been written becomes less likely (Keskar et al. 2019).
        suppress: pieces of the vocabulary that are never written, separated by spaces.
        temperature: above 0, tokens are drawn at random instead of searched for.
        top_k: draw from this many most probable tokens; 0 for all.
        top_p: draw from the most probable tokens that have this probability together.
        seed: of the drawing.

    Example:

    >>> from keras_transformer import DecodingConfig
    >>> DecodingConfig(beams=8, no_repeat_ngram=3).length_penalty
    0.6
    """

    beams: int = 4
    length_penalty: float = 0.6
    length_offset: float = 5.0
    coverage_penalty: float = 0.0
    min_length: int = 0
    max_length: int | None = None
    no_repeat_ngram: int = 0
    repetition_penalty: float = 1.0
    suppress: str = ""
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self):
        check(self, "beams", "at least 1", lambda value: value >= 1)
        check(self, "max_length", "at least 1", lambda value: value is None or value >= 1)
        check(self, "repetition_penalty", "at least 1", lambda value: value >= 1)
        check(self, "top_p", "above 0 and at most 1", lambda value: 0 < value <= 1)
        names = (
            "length_offset", "coverage_penalty", "min_length", "no_repeat_ngram", "temperature",
            "top_k", "seed",
        )  # fmt: skip
        for name in names:
            check(self, name, "at least 0", lambda value: value >= 0)
