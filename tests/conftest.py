import dataclasses
import os
from pathlib import Path

# Some virtual machines tell of matrix tiles (AMX) that they cannot run, and bfloat16 products then
# end the process with an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import keras
import numpy as np
import pytest

import keras_transformer as kt


@pytest.fixture(autouse=True)
def _same_random_numbers():
    keras.utils.set_random_seed(1)


@pytest.fixture
def normal():
    """Standard normal numbers of a shape, as float32."""
    generator = np.random.default_rng(1)
    return lambda *shape: generator.standard_normal(shape, dtype="float32")


def make_model(tokenizer, seed=3):
    """Untrained, but with weights large enough that what it writes depends on what it reads."""
    keras.utils.set_random_seed(seed)
    config = kt.ModelConfig(
        tokenizer.vocabulary_size, d_model=16, d_ff=512, num_heads=2, encoder_layers=1,
        decoder_layers=2, norm="pre", max_length=48,
    )  # fmt: skip
    model = kt.Transformer(config)
    for weight in model.weights:
        weight.assign(weight * 2.0)
    return model


@dataclasses.dataclass(frozen=True)
class Exported:
    """A little model, and what became of it."""

    model: kt.Transformer
    tokenizer: kt.Tokenizer
    directory: Path

    def load(self):
        import tensorflow as tf

        return tf.saved_model.load(str(self.directory))


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    text = "to be or not to be that is the question whether tis nobler in the mind to suffer"
    tokenizer = kt.Tokenizer.learn([text] * 9, vocabulary_size=40, kind="char")
    model = make_model(tokenizer, seed=5)
    directory = kt.export(model, tokenizer, tmp_path_factory.mktemp("exported"))
    return Exported(model, tokenizer, directory)
