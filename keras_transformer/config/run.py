"""A whole run."""

import dataclasses

from keras_transformer.config.checks import FieldError
from keras_transformer.config.data import DataConfig, TokenizerConfig
from keras_transformer.config.decoding import DecodingConfig
from keras_transformer.config.methods import MethodsConfig
from keras_transformer.config.model import ModelConfig
from keras_transformer.config.training import TrainingConfig


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A whole training run: the tables of its TOML file."""

    model: ModelConfig
    tokenizer: TokenizerConfig = dataclasses.field(default_factory=TokenizerConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    methods: MethodsConfig = dataclasses.field(default_factory=MethodsConfig)
    decoding: DecodingConfig = dataclasses.field(default_factory=DecodingConfig)

    def __post_init__(self):
        if self.data.max_tokens > self.model.max_length:
            raise FieldError(
                self.data,
                "max_tokens",
                f" is {self.data.max_tokens}, more than model.max_length="
                f"{self.model.max_length}: the model could not read such a sentence.",
            )
        if self.training.goes_by_bleu and not self.data.files("validation"):
            raise FieldError(
                self.training,
                "final_weights" if self.training.final_weights == "best" else "patience",
                " goes by BLEU on validation data: give data.validation_source and _target.",
            )
        if self.model.copy_words and self.methods.subword_regularization:
            raise FieldError(
                self.methods,
                "subword_regularization",
                f" is {self.methods.subword_regularization}, but model.copy_words needs the same "
                "pieces on both sides: set one of them to 0.",
            )
        if self.methods.subword_regularization and self.tokenizer.kind not in ("bpe", "unigram"):
            raise FieldError(
                self.methods,
                "subword_regularization",
                f" needs a bpe or unigram vocabulary; tokenizer.kind is {self.tokenizer.kind!r}.",
            )
        if self.tokenizer.kind == "bpe" and self.methods.subword_regularization >= 1:
            raise FieldError(
                self.methods,
                "subword_regularization",
                f" is {self.methods.subword_regularization}; expected below 1, the share of merges "
                "that a bpe vocabulary leaves out.",
            )
        if self.methods.r_drop and self.methods.r_drop_after >= self.training.epochs:
            raise FieldError(
                self.methods,
                "r_drop_after",
                f" is {self.methods.r_drop_after}, and training.epochs={self.training.epochs}: "
                "R-Drop would never begin.",
            )
        if self.guided_by_alignments and self.data.train_alignments is None:
            raise FieldError(
                self.methods, "guidance", " is 'alignments': give data.train_alignments."
            )
        if (
            self.guided_by_alignments
            and self.tokenizer.kind == "word"
            and not self.model.copy_words
        ):
            raise FieldError(
                self.methods,
                "guidance",
                " is 'alignments', but a word vocabulary makes one token of unknown words in a "
                "row: set model.copy_words, or another tokenizer.kind.",
            )

    @property
    def guided_by_alignments(self) -> bool:
        """Whether training reads alignments."""
        return self.methods.guided_attention > 0 and self.methods.guidance == "alignments"
