"""Training methods beyond the paper's."""

import dataclasses

from keras_transformer.config.checks import check, check_choice

TARGET_INPUTS = ("gold", "sequential", "two_pass", "parallel", "free_running")
DECAYS = {"linear": 1.0, "exponential": 0.9999, "inverse_sigmoid": 2000.0}  # with their k
GUIDANCES = ("diagonal", "alignments")
REGULARIZED = ("both", "source", "target")


@dataclasses.dataclass(frozen=True)
class MethodsConfig:
    """Training methods beyond the paper's; by default none.

    Args:
        r_drop: alpha of R-Drop (Liang et al. 2021): every batch is passed twice, and the two
            distributions that dropout makes of it are drawn together. 5 is the paper's.
        r_drop_after: epochs before R-Drop begins, in which a batch is passed once.
        target_input: what the decoder reads: the "gold" target (teacher forcing), or partly its own
            predictions, made one place after the other ("sequential", Bengio et al. 2015), all at
            once after a pass over the gold target ("two_pass", Mihaylova and Martins 2019), or so
            several times ("parallel", Duckworth et al. 2019); or nothing else ("free_running").
        sampling_decay: how the probability of the gold token falls with the batches i seen:
            "linear" k - c i, "exponential" k^i, or "inverse_sigmoid" k / (k + exp(i / k)).
        sampling_k: k; left out, 1 for "linear", 0.9999 for "exponential", 2000 for
            "inverse_sigmoid".
        sampling_c: c.
        sampling_floor: what it does not fall below.
        sampling_passes: passes before the last one, of "parallel".
        guided_attention: weight of a loss that tells the cross-attention where to look; 0 for none.
        guidance: "diagonal" (Tachibana et al. 2018), or the "alignments" of data.train_alignments
            (Garg et al. 2019).
        guidance_width: g of exp(-(t/T - s/S)^2 / 2 g^2): how near to the diagonal is near.
        source_word_dropout, target_word_dropout: the share of tokens that are read as unknown.
        subword_regularization: above 0, sentences are split into pieces at random, a new way every
            epoch: the share of merges that BPE leaves out (Provilkov et al. 2020), or alpha of a
            unigram vocabulary (Kudo 2018). 0.1 is usual for both. The draws have no seed: a run
            that is repeated, or resumed, sees others.
        regularized: which sentences that concerns: "both" sides', or only those of the "source"
            (which costs less: the decoder and its projection do most of the work) or the "target".

    Example:

    >>> from keras_transformer.config import MethodsConfig
    >>> MethodsConfig(target_input="two_pass", sampling_decay="inverse_sigmoid").r_drop
    0.0
    """

    r_drop: float = 0.0
    r_drop_after: int = 0
    target_input: str = "gold"
    sampling_decay: str = "linear"
    sampling_k: float | None = None
    sampling_c: float = 1e-4
    sampling_floor: float = 0.0
    sampling_passes: int = 2
    guided_attention: float = 0.0
    guidance: str = "diagonal"
    guidance_width: float = 0.2
    source_word_dropout: float = 0.0
    target_word_dropout: float = 0.0
    subword_regularization: float = 0.0
    regularized: str = "both"

    def __post_init__(self):
        names = (
            "r_drop", "r_drop_after", "guided_attention", "sampling_c", "subword_regularization"
        )  # fmt: skip
        for name in names:
            check(self, name, "at least 0", lambda value: value >= 0)
        for name in ("sampling_passes", "guidance_width"):
            check(self, name, "a positive number", lambda value: value > 0)
        for name in ("source_word_dropout", "target_word_dropout", "sampling_floor"):
            check(self, name, "at least 0 and below 1", lambda value: 0 <= value < 1)
        check_choice(self, "target_input", TARGET_INPUTS)
        check_choice(self, "sampling_decay", DECAYS)
        check(self, "sampling_k", "a positive number", lambda value: value is None or value > 0)
        check_choice(self, "guidance", GUIDANCES)
        check_choice(self, "regularized", REGULARIZED)
        if self.sampling_decay == "exponential":
            check(self, "sampling_k", "below 1, for k^i to fall", lambda k: k is None or k < 1)

    @property
    def decay_k(self) -> float:
        """k of the decay."""
        return DECAYS[self.sampling_decay] if self.sampling_k is None else self.sampling_k
