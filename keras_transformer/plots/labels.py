"""Labels that have to fit."""

import unicodedata
from collections.abc import Iterable

from keras_transformer.plots.fonts import find_fonts

LONGEST = 18  # in Latin letters


def shorten(label: str, longest: int = LONGEST) -> str:
    """A label on one line that is not too long.

    Example:

    >>> from keras_transformer.plots.labels import shorten
    >>> shorten("▁Rindfleischetikettierungsgesetz")
    '▁Rindfleischetike…'
    """
    # An SVG may not have control characters.
    label = "".join("\ufffd" if unicodedata.category(one) == "Cc" else one for one in label)
    if sum(map(_columns, label)) <= longest:
        return label
    end = len(label)
    while sum(map(_columns, label[:end])) >= longest:
        end -= 1
    return label[:end] + "…"


def inches(labels: Iterable[str], points: float) -> float:
    """The length of the longest label in a size of type: what is enough, not what is exact."""
    labels = list(labels)
    _, missing = find_fonts("".join(labels))  # whose boxes are wide
    columns = [sum(2 if one in missing else _columns(one) for one in label) for label in labels]
    return max(columns) * 0.72 * points / 72


def _columns(character):
    """The width of a character in Latin letters: East Asian ones are as wide as two."""
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
