import keras
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _same_random_numbers():
    keras.utils.set_random_seed(1)


@pytest.fixture
def normal():
    """Standard normal numbers of a shape, as float32."""
    generator = np.random.default_rng(1)
    return lambda *shape: generator.standard_normal(shape, dtype="float32")
