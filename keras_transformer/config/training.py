"""How a model is trained."""

import dataclasses

from keras_transformer.config.checks import FieldError, check, check_choice

PRECISIONS = ("float32", "mixed_bfloat16")
BLEU_TOKENIZERS = ("13a", "none", "char", "intl", "zh")
OPTIMIZERS = ("adam", "muon")
FINAL_WEIGHTS = ("last", "average", "ema", "best")


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How the model is trained; by default as in the paper.

    Args:
        epochs: passes over the training data.
        max_minutes: training ends before it, after a whole epoch and with its cool-down, which
            begins earlier where there is no time for all epochs; 0 for all epochs. What a run
            has trained before --resume counts.
        seed: decides initial weights, dropout and the order of the data.
        start_from: another run, whose vocabulary and weights this one begins with (fine-tuning).
        warmup_steps: updates until the learning rate's peak.
        peak_learning_rate: the peak; left out, the paper's (d_model * warmup_steps)^-0.5.
        cooldown_epochs: over so many last epochs the learning rate falls to zero in a line; 0 for
            the paper's schedule, which does not know when it ends.
        optimizer: "adam", or "muon" (Jordan et al. 2024), which makes the updates of matrices
            orthogonal, and learns in fewer updates; embeddings and vectors are left to Adam.
        beta_1, beta_2, epsilon: of Adam.
        clip_norm: the longest gradient, all weights together; 0 for no limit.
        label_smoothing: the share of each label that is spread over the vocabulary.
        precision: "float32" or "mixed_bfloat16".
        jit_compile: whether XLA compiles the training step, once for every shape of a batch.
        parallel_parts: parts that a batch is computed in side by side; `keras-transformer train`
            gives each its share of the cores. With 2, a step of a small model is faster on two.
        accumulate_batches: batches whose gradients are averaged into one update.
        checkpoint_steps: batches between checkpoints; one is also written after each epoch.
        keep_checkpoints: how many of them are kept.
        final_weights: what the run's model is: the "last" weights, the "average" of the last
            average_checkpoints, the moving average "ema", or those of the epoch with the "best"
            BLEU on the validation data.
        average_checkpoints: how many checkpoints are averaged.
        ema_momentum: the share of the moving average that a batch leaves as it is.
        bleu_epochs: epochs between two translations of the validation data; 0 for none.
        bleu_pairs: how many pairs of it are translated.
        bleu_tokenize: how BLEU splits words: "13a", "none" for text that is split already, "char",
            "intl", "zh".
        patience: epochs without a better BLEU until training stops; 0 for all epochs.
        sample_lines: how many of the translations are shown.
    """

    epochs: int = 10
    max_minutes: float = 0.0
    seed: int = 1
    start_from: str = ""
    warmup_steps: int = 4000
    peak_learning_rate: float | None = None
    cooldown_epochs: int = 0
    optimizer: str = "adam"
    beta_1: float = 0.9
    beta_2: float = 0.98
    epsilon: float = 1e-9
    clip_norm: float = 0.0
    label_smoothing: float = 0.1
    precision: str = "float32"
    jit_compile: bool = False
    parallel_parts: int = 1
    accumulate_batches: int = 1
    checkpoint_steps: int = 1000
    keep_checkpoints: int = 3
    final_weights: str = "last"
    average_checkpoints: int = 10
    ema_momentum: float = 0.999
    bleu_epochs: int = 1
    bleu_pairs: int = 1000
    bleu_tokenize: str = "13a"
    patience: int = 0
    sample_lines: int = 2

    def __post_init__(self):
        names = (
            "epochs", "warmup_steps", "parallel_parts", "accumulate_batches", "checkpoint_steps",
            "keep_checkpoints", "average_checkpoints", "bleu_pairs",
        )  # fmt: skip
        for name in names:
            check(self, name, "at least 1", lambda value: value >= 1)
        for name in ("beta_1", "beta_2", "label_smoothing", "ema_momentum"):
            check(self, name, "at least 0 and below 1", lambda value: 0 <= value < 1)
        names = (
            "clip_norm", "max_minutes", "seed", "cooldown_epochs", "bleu_epochs", "patience",
            "sample_lines",
        )  # fmt: skip
        for name in names:
            check(self, name, "at least 0", lambda value: value >= 0)
        check_choice(self, "optimizer", OPTIMIZERS)
        check_choice(self, "final_weights", FINAL_WEIGHTS)
        check_choice(self, "bleu_tokenize", BLEU_TOKENIZERS)
        if self.goes_by_bleu and self.bleu_epochs == 0:
            raise FieldError(
                self, "bleu_epochs", " is 0, but patience and the best weights go by BLEU: set 1."
            )
        check(self, "epsilon", "a positive number", lambda value: value > 0)
        check(self, "peak_learning_rate", "a positive number", lambda v: v is None or v > 0)
        check_choice(self, "precision", PRECISIONS)

        if self.cooldown_epochs > self.epochs:
            raise FieldError(
                self,
                "cooldown_epochs",
                f" is {self.cooldown_epochs}, more than training.epochs={self.epochs}: set both.",
            )
        if 0 < self.patience < self.bleu_epochs:
            raise FieldError(
                self,
                "patience",
                f" is {self.patience}, less than training.bleu_epochs={self.bleu_epochs}: training "
                "would stop before the next BLEU.",
            )

    @property
    def goes_by_bleu(self) -> bool:
        """Whether BLEU on the validation data decides something."""
        return self.patience > 0 or self.final_weights == "best"
