"""What a model and a run are made of: frozen dataclasses, checked field by field."""

from keras_transformer.config.checks import FieldError, suggest
from keras_transformer.config.data import DataConfig, TokenizerConfig
from keras_transformer.config.decoding import DecodingConfig
from keras_transformer.config.methods import MethodsConfig
from keras_transformer.config.model import PRESETS, ModelConfig
from keras_transformer.config.run import RunConfig
from keras_transformer.config.training import BLEU_TOKENIZERS, TrainingConfig

__all__ = [
    "BLEU_TOKENIZERS",
    "PRESETS",
    "DataConfig",
    "DecodingConfig",
    "FieldError",
    "MethodsConfig",
    "ModelConfig",
    "RunConfig",
    "TokenizerConfig",
    "TrainingConfig",
    "suggest",
]
