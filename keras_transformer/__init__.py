"""The Transformer for Keras 3 and TensorFlow, from raw text to raw text."""

from keras_transformer.attention.dense import DotProductAttention
from keras_transformer.attention.multi_head import CrossAttention, SelfAttention
from keras_transformer.config import DecodingConfig, MethodsConfig, ModelConfig, RunConfig
from keras_transformer.config_file import read_config, read_tables
from keras_transformer.errors import InputError
from keras_transformer.exporting.ctranslate2 import export_ctranslate2
from keras_transformer.exporting.exported import ExportedTranslator
from keras_transformer.exporting.saved_model import export
from keras_transformer.generation.generate import Ensemble
from keras_transformer.generation.translate import Hypothesis, Translator
from keras_transformer.layers.decoder import Decoder, DecoderLayer
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.positions import (
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
)
from keras_transformer.layers.residual import Residual
from keras_transformer.layers.wiring import CrossWiring
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.loss import LabelSmoothedCrossEntropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy
from keras_transformer.training.objective import Objective
from keras_transformer.training.run import load_run, train
from keras_transformer.training.schedule import WarmupSchedule
from keras_transformer.version import VERSION

__all__ = [
    "CrossAttention",
    "CrossWiring",
    "Decoder",
    "DecoderLayer",
    "DecodingConfig",
    "DotProductAttention",
    "Encoder",
    "EncoderLayer",
    "Ensemble",
    "ExportedTranslator",
    "FeedForward",
    "Hypothesis",
    "InputError",
    "LabelSmoothedCrossEntropy",
    "LearnedPositions",
    "MethodsConfig",
    "ModelConfig",
    "Objective",
    "Perplexity",
    "Residual",
    "RotaryPositions",
    "RunConfig",
    "SelfAttention",
    "SinusoidalPositions",
    "TokenAccuracy",
    "TokenEmbedding",
    "Tokenizer",
    "Transformer",
    "Translator",
    "WarmupSchedule",
    "export",
    "export_ctranslate2",
    "load_run",
    "read_config",
    "read_tables",
    "train",
]
__version__ = VERSION
