"""How weights become shades: by their square root, so that small ones are seen as well."""

import numpy as np


def root(weights: np.ndarray) -> np.ndarray:
    """The square root, with the sign of the weight."""
    return np.sign(weights) * np.sqrt(np.abs(weights))


def square(shades: np.ndarray) -> np.ndarray:
    """The inverse of `root`."""
    return np.sign(shades) * np.square(shades)
