"""What a model and a run are made of: frozen dataclasses, checked field by field."""

import dataclasses
import difflib
from typing import Self

import keras

from keras_transformer.attention.spec import parse_heads
from keras_transformer.errors import InputError
from keras_transformer.layers.residual import NORMS
from keras_transformer.layers.wiring import WIRINGS

POSITIONS = ("sinusoidal", "learned", "rotary")
TOKENIZERS = ("bpe", "unigram", "char", "word")
PRECISIONS = ("float32", "mixed_bfloat16")
BLEU_TOKENIZERS = ("13a", "none", "char", "intl", "zh")
FINAL_WEIGHTS = ("last", "average", "ema", "best")
TARGET_INPUTS = ("gold", "sequential", "two_pass", "parallel", "free_running")
DECAYS = ("linear", "exponential", "inverse_sigmoid")
GUIDANCES = ("diagonal", "alignments")

PRESETS = {
    # The published Transformer-tiny for Multi30k, and a size for a laptop.
    "tiny": dict(encoder_layers=4, decoder_layers=4, d_model=128, d_ff=256, num_heads=4),
    "small": dict(encoder_layers=3, decoder_layers=3, d_model=256, d_ff=1024, num_heads=8),
    # Table 3 of the paper.
    "base": dict(encoder_layers=6, decoder_layers=6, d_model=512, d_ff=2048, num_heads=8),
    "big": dict(
        encoder_layers=6, decoder_layers=6, d_model=1024, d_ff=4096, num_heads=16, dropout=0.3
    ),
}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The sizes and parts of a Transformer; by default the paper's base model.

    Args:
        vocabulary_size: V, of source and target together unless the next field is given.
        target_vocabulary_size: the target's own vocabulary, with an embedding table of its own.
        d_model: D, the size of embeddings and of every layer's output.
        d_ff: F, the inner size of the feed-forward networks.
        num_heads: H.
        encoder_layers, decoder_layers: the depths.
        encoder_heads, decoder_heads, cross_heads: what each attention head does.
        cross_attention: the encoder layer that a decoder layer looks at: "last", the one of the
            "same" height, or a learned "mix" of all.
        positions: "sinusoidal", "learned" or "rotary".
        max_length: the longest sequence, in tokens, that learned positions and decoding allow.
        activation: of the feed-forward networks, by its Keras name.
        gated: whether that activation is a gate (GLU).
        norm: layer normalisation after ("post", the paper's) or before ("pre") each sublayer.
        dropout: on embeddings and sublayer outputs.
        attention_dropout: on attention weights.
        feed_forward_dropout: inside the feed-forward networks.
        tie_output: whether the target's embedding table is the output projection.
        copy_words: above 0, the model can copy tokens of the source (a pointer-generator), and so
            many words of it that the vocabulary does not know; see `Pointer`.

    Example:

    >>> from keras_transformer import ModelConfig
    >>> ModelConfig.preset("tiny", vocabulary_size=8_000, dropout=0.3).d_model
    128
    """

    vocabulary_size: int
    target_vocabulary_size: int | None = None
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_heads: str = "dot"
    decoder_heads: str = "dot"
    cross_heads: str = "dot"
    cross_attention: str = "last"
    positions: str = "sinusoidal"
    max_length: int = 256
    activation: str = "relu"
    gated: bool = False
    norm: str = "post"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    tie_output: bool = True
    copy_words: int = 0

    def __post_init__(self):
        for name in ("vocabulary_size", "d_model", "d_ff", "num_heads", "max_length"):
            _check(self, name, "a positive number", lambda value: value > 0)
        for name in ("encoder_layers", "decoder_layers"):
            _check(self, name, "at least 1", lambda value: value >= 1)
        for name in ("dropout", "attention_dropout", "feed_forward_dropout"):
            _check(self, name, "at least 0 and below 1", lambda value: 0 <= value < 1)
        _check(self, "copy_words", "at least 0", lambda value: value >= 0)
        if self.copy_words and self.target_vocabulary_size is not None:
            raise FieldError(
                self, "copy_words", ": copying needs one vocabulary for source and target."
            )
        _check_choice(self, "cross_attention", WIRINGS)
        _check_choice(self, "positions", POSITIONS)
        _check_choice(self, "norm", NORMS)
        if self.d_model % (2 * self.num_heads):
            raise FieldError(
                self,
                "d_model",
                f" is {self.d_model}, which {self.num_heads} heads of an even size cannot share: "
                f"choose a multiple of {2 * self.num_heads}.",
            )
        for name in ("encoder_heads", "decoder_heads", "cross_heads"):
            _check_reading(self, name, lambda spec: parse_heads(spec, self.num_heads))
        _check_reading(self, "activation", keras.activations.get)

    @classmethod
    def preset(cls, name: str, **fields) -> Self:
        """One of "tiny", "small", "base", "big", with any field set otherwise."""
        if name not in PRESETS:
            raise InputError(f"Unknown preset {name!r}: choose {', '.join(PRESETS)}.")
        return cls(**{**PRESETS[name], **fields})


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """How the joint subword vocabulary of source and target is learned.

    Args:
        kind: "bpe", "unigram", "char" or "word".
        vocabulary_size: how many pieces to learn, the four special ones among them.
        split_digits: whether every digit is a piece of its own.
        normalization: sentencepiece's rule: "nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf" (the last
            two fold case) or "identity".
    """

    kind: str = "bpe"
    vocabulary_size: int = 8000
    split_digits: bool = False
    normalization: str = "nmt_nfkc"

    def __post_init__(self):
        _check_choice(self, "kind", TOKENIZERS)
        _check(self, "vocabulary_size", "more than the 4 special pieces", lambda value: value > 4)
        rules = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")
        _check_choice(self, "normalization", rules)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where the sentence pairs are, and how they are put into batches.

    Args:
        train_source, train_target: two files, line N of one translating line N of the other.
        train: or one file, source and target separated by a tab.
        train_alignments: a file with the word alignments of the pairs, for guided attention: lines
            such as "0-0 1-2", source word and target word, counted from 0, words between spaces.
        validation_source, validation_target, validation: likewise; may be left out.
        tokens_per_batch: a batch holds this many places a side, padding included.
        max_tokens: longer sentences, on either side, are left out of training.
        shuffle_pairs: how many pairs the shuffling has in view at once.
    """

    train_source: str | None = None
    train_target: str | None = None
    train: str | None = None
    train_alignments: str | None = None
    validation_source: str | None = None
    validation_target: str | None = None
    validation: str | None = None
    tokens_per_batch: int = 4096
    max_tokens: int = 128
    shuffle_pairs: int = 200_000

    def __post_init__(self):
        for name in ("tokens_per_batch", "max_tokens", "shuffle_pairs"):
            _check(self, name, "a positive number", lambda value: value > 0)
        if self.max_tokens > self.tokens_per_batch:
            raise FieldError(
                self,
                "max_tokens",
                f" is {self.max_tokens}, more than data.tokens_per_batch={self.tokens_per_batch}: "
                "a longest sentence would not fit into a batch.",
            )
        for split in ("train", "validation"):
            names = (split, f"{split}_source", f"{split}_target")
            given = tuple(getattr(self, name) is not None for name in names)
            # A TSV, or two files; validation may be left out, train is asked for when it is read.
            if given not in {(True, False, False), (False, True, True), (False, False, False)}:
                raise FieldError(
                    self,
                    names[given.index(True)],
                    f": give either data.{split} (one TSV file) or both data.{split}_source and "
                    f"data.{split}_target.",
                )

    def files(self, split: str) -> tuple[str, ...]:
        """The file or files of "train" or "validation"; none where there is no such data."""
        one, source, target = (getattr(self, split + end) for end in ("", "_source", "_target"))
        return (one,) if one else (source, target) if source else ()


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How the model is trained; by default as in the paper.

    Args:
        epochs: passes over the training data.
        seed: decides initial weights, dropout and the order of the data.
        warmup_steps: updates until the learning rate's peak.
        peak_learning_rate: the peak; left out, the paper's (d_model * warmup_steps)^-0.5.
        cooldown_epochs: over so many last epochs the learning rate falls to zero in a line; 0 for
            the paper's schedule, which does not know when it ends.
        beta_1, beta_2, epsilon: of Adam.
        clip_norm: the longest gradient, all weights together; 0 for no limit.
        label_smoothing: the share of each label that is spread over the vocabulary.
        precision: "float32" or "mixed_bfloat16".
        jit_compile: whether XLA compiles the training step, once for every shape of a batch.
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
    seed: int = 1
    warmup_steps: int = 4000
    peak_learning_rate: float | None = None
    cooldown_epochs: int = 0
    beta_1: float = 0.9
    beta_2: float = 0.98
    epsilon: float = 1e-9
    clip_norm: float = 0.0
    label_smoothing: float = 0.1
    precision: str = "float32"
    jit_compile: bool = False
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
            "epochs", "warmup_steps", "accumulate_batches", "checkpoint_steps", "keep_checkpoints",
            "average_checkpoints", "bleu_pairs",
        )  # fmt: skip
        for name in names:
            _check(self, name, "at least 1", lambda value: value >= 1)
        for name in ("beta_1", "beta_2", "label_smoothing", "ema_momentum"):
            _check(self, name, "at least 0 and below 1", lambda value: 0 <= value < 1)
        names = ("clip_norm", "seed", "cooldown_epochs", "bleu_epochs", "patience", "sample_lines")
        for name in names:
            _check(self, name, "at least 0", lambda value: value >= 0)
        _check_choice(self, "final_weights", FINAL_WEIGHTS)
        _check_choice(self, "bleu_tokenize", BLEU_TOKENIZERS)
        if self.goes_by_bleu and self.bleu_epochs == 0:
            raise FieldError(
                self, "bleu_epochs", " is 0, but patience and the best weights go by BLEU: set 1."
            )
        _check(self, "epsilon", "a positive number", lambda value: value > 0)
        _check(self, "peak_learning_rate", "a positive number", lambda v: v is None or v > 0)
        _check_choice(self, "precision", PRECISIONS)

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


@dataclasses.dataclass(frozen=True)
class MethodsConfig:
    """Training methods beyond the paper's; by default none.

    Args:
        r_drop: alpha of R-Drop (Wu et al. 2021): every batch is passed twice, and the two
            distributions that dropout makes of it are drawn together. 5 is the paper's.
        target_input: what the decoder reads: the "gold" target (teacher forcing), or partly its own
            predictions, drawn one place after the other ("sequential", Bengio et al. 2015), all at
            once after a pass over the gold target ("two_pass", Mihaylova and Martins 2019), or so
            several times ("parallel", Duckworth et al. 2019); or nothing else ("free_running").
        sampling_decay: how the probability of the gold token falls with the batches i seen:
            "linear" k - c i, "exponential" k^i, or "inverse_sigmoid" k / (k + exp(i / k)).
        sampling_k, sampling_c: k and c.
        sampling_floor: what it does not fall below.
        sampling_passes: passes before the last one, of "parallel".
        guided_attention: weight of a loss that tells the cross-attention where to look; 0 for none.
        guidance: "diagonal" (Tachibana et al. 2018), or the "alignments" of data.train_alignments
            (Garg et al. 2019).
        guidance_width: g of exp(-(t/T - s/S)^2 / 2 g^2): how near to the diagonal is near.
        source_word_dropout, target_word_dropout: the share of tokens that are read as unknown.
        subword_regularization: above 0, sentences are split into pieces at random, a new way every
            epoch: the share of merges that BPE leaves out (Provilkov et al. 2020), or alpha of a
            unigram vocabulary (Kudo 2018). 0.1 is usual for both.

    Example:

    >>> from keras_transformer.config import MethodsConfig
    >>> MethodsConfig(target_input="two_pass", sampling_decay="inverse_sigmoid").r_drop
    0.0
    """

    r_drop: float = 0.0
    target_input: str = "gold"
    sampling_decay: str = "linear"
    sampling_k: float = 1.0
    sampling_c: float = 1e-4
    sampling_floor: float = 0.0
    sampling_passes: int = 2
    guided_attention: float = 0.0
    guidance: str = "diagonal"
    guidance_width: float = 0.2
    source_word_dropout: float = 0.0
    target_word_dropout: float = 0.0
    subword_regularization: float = 0.0

    def __post_init__(self):
        for name in ("r_drop", "guided_attention", "sampling_c", "subword_regularization"):
            _check(self, name, "at least 0", lambda value: value >= 0)
        for name in ("sampling_k", "sampling_passes", "guidance_width"):
            _check(self, name, "a positive number", lambda value: value > 0)
        for name in ("source_word_dropout", "target_word_dropout", "sampling_floor"):
            _check(self, name, "at least 0 and below 1", lambda value: 0 <= value < 1)
        _check_choice(self, "target_input", TARGET_INPUTS)
        _check_choice(self, "sampling_decay", DECAYS)
        _check_choice(self, "guidance", GUIDANCES)
        if self.sampling_decay == "exponential":
            _check(self, "sampling_k", "at most 1, for k^i to fall", lambda value: value <= 1)


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
        _check(self, "beams", "at least 1", lambda value: value >= 1)
        _check(self, "max_length", "at least 1", lambda value: value is None or value >= 1)
        _check(self, "repetition_penalty", "at least 1", lambda value: value >= 1)
        _check(self, "top_p", "above 0 and at most 1", lambda value: 0 < value <= 1)
        names = (
            "length_offset", "coverage_penalty", "min_length", "no_repeat_ngram", "temperature",
            "top_k", "seed",
        )  # fmt: skip
        for name in names:
            _check(self, name, "at least 0", lambda value: value >= 0)


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
        if self.guided_by_alignments and self.data.train_alignments is None:
            raise FieldError(
                self.methods, "guidance", " is 'alignments': give data.train_alignments."
            )

    @property
    def guided_by_alignments(self) -> bool:
        """Whether training reads alignments."""
        return self.methods.guided_attention > 0 and self.methods.guidance == "alignments"


class FieldError(InputError):
    """A field of a config has a value that it cannot have."""

    def __init__(self, config, name, problem):
        self.table = type(config).__name__.removesuffix("Config").lower()
        self.field = name
        super().__init__(f"{self.table}.{name}{problem}")


def suggest(name, known, otherwise="Known"):
    """The one of the known names that was probably meant, or all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"Did you mean {near[0]}?" if near else f"{otherwise}: {', '.join(known)}."


def _check(config, name, expected, holds):
    value = getattr(config, name)
    if not holds(value):
        raise FieldError(config, name, f" is {value!r}; expected {expected}.")


def _check_reading(config, name, read):
    try:
        read(getattr(config, name))
    except ValueError as error:
        raise FieldError(config, name, f": {error}") from None


def _check_choice(config, name, choices):
    value = getattr(config, name)
    if value not in choices:
        near = suggest(str(value), choices, otherwise="Choose")
        raise FieldError(config, name, f" is {value!r}. {near}")
