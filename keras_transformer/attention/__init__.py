"""Attention mechanisms by name; a new one is one more row."""

from keras_transformer.attention.aft import AttentionFree
from keras_transformer.attention.alignment import LocationAttention, MonotonicAttention
from keras_transformer.attention.bucketed import BlockAttention, KMeansAttention, LSHAttention
from keras_transformer.attention.compressed import ConvolvedAttention, LinformerAttention
from keras_transformer.attention.dense import (
    AdditiveAttention,
    CosineAttention,
    DotProductAttention,
    GeneralAttention,
    MLPAttention,
)
from keras_transformer.attention.fourier import FourierMixing
from keras_transformer.attention.gating import SpatialGating
from keras_transformer.attention.global_tokens import GlobalAttention
from keras_transformer.attention.linear import (
    EfficientAttention,
    EluAttention,
    PerformerAttention,
    RandomFeatureAttention,
)
from keras_transformer.attention.patterns import LocalAttention, StridedAttention
from keras_transformer.attention.sinkhorn import SinkhornAttention
from keras_transformer.attention.synthesizer import SynthesizerAttention

MECHANISMS = {
    # Every place looks at every place, by a score
    "dot": DotProductAttention,
    "general": GeneralAttention,
    "cosine": CosineAttention,
    "additive": AdditiveAttention,
    "mlp": MLPAttention,
    # At some, by position
    "local": LocalAttention,
    "strided": StridedAttention,
    "global_tokens": GlobalAttention,
    # At some, by bucket
    "block": BlockAttention,
    "lsh": LSHAttention,
    "kmeans": KMeansAttention,
    "sinkhorn": SinkhornAttention,
    # At a summary
    "linformer": LinformerAttention,
    "compressed": ConvolvedAttention,
    # At sums
    "linear": EluAttention,
    "efficient": EfficientAttention,
    "rfa": RandomFeatureAttention,
    "performer": PerformerAttention,
    # Without queries and keys
    "synthesizer": SynthesizerAttention,
    "aft": AttentionFree,
    "fourier": FourierMixing,
    "gmlp": SpatialGating,
    # Along another sequence
    "monotonic": MonotonicAttention,
    "location": LocationAttention,
}
