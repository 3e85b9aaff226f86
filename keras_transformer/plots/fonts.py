"""Fonts for any script, of those that are installed."""

import functools
import logging
import unicodedata
from collections.abc import Iterable

from matplotlib import font_manager

FIRST = "DejaVu Sans"  # comes with matplotlib: Latin, Greek, Cyrillic, Arabic, Hebrew and others
# It has a box for every character, and would be taken for a font that can write them all.
LAST_RESORT = "Last Resort"
REGULAR = (400, "normal", "regular", "book")
EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH")
SHOWN = 10  # characters that a warning names

logger = logging.getLogger(__name__)


def find_fonts(text: Iterable[str]) -> tuple[list[str], str]:
    """Looks for fonts that have all characters of a text together.

    Args:
        text: characters, in any order.

    Returns:
        The families, for matplotlib to try one after the other, and the characters that no
        installed font has.

    Example:

    >>> from keras_transformer.plots.fonts import find_fonts
    >>> find_fonts("Москва, Αθήνα")
    (['DejaVu Sans'], '')
    """
    families = [FIRST]
    missing = {ord(character) for character in text if _is_seen(character)}
    missing -= _characters(font_manager.findfont(FIRST))
    fonts = installed_fonts() if missing else {}
    while missing and fonts:
        # The first of equals: the order is that of preference.
        best = max(fonts, key=lambda family: len(missing & fonts[family]))
        if not missing & fonts[best]:
            break
        families.append(best)
        missing -= fonts[best]
    return families, "".join(map(chr, sorted(missing)))


def installed_fonts() -> dict[str, frozenset[int]]:
    """The characters of each family that is installed, the plainest family first."""
    manager = font_manager.fontManager
    # Matplotlib keeps its list from process to process, without what was installed since.
    known = {entry.fname for entry in manager.ttflist}
    for path in sorted(font_manager.findSystemFonts()):
        if path not in known:
            try:
                manager.addfont(path)
            except (OSError, RuntimeError):  # broken, or of a kind that matplotlib cannot draw
                continue
    fonts = {}
    for entry in manager.ttflist:
        plain = entry.style == "normal" and entry.weight in REGULAR
        if plain and entry.name not in fonts and not entry.name.startswith(LAST_RESORT):
            fonts[entry.name] = _characters(entry.fname)
    # Long names are those of special cuts.
    return dict(sorted(fonts.items(), key=lambda font: ("Sans" not in font[0], len(font[0]))))


def tell_missing(characters: str) -> None:
    """Logs in one line that characters cannot be drawn, and what to install."""
    east_asian = [unicodedata.name(one, "").startswith(EAST_ASIAN) for one in characters]
    packages = ["fonts-noto-cjk"] * any(east_asian) + ["fonts-noto-core"] * (not all(east_asian))
    more = f" and {len(characters) - SHOWN} more" if len(characters) > SHOWN else ""
    logger.warning(
        "No installed font has the characters %s%s: boxes stand for them. Install one that has "
        "them, such as Debian's %s.",
        " ".join(characters[:SHOWN]),
        more,
        " and ".join(packages),
    )


def _is_seen(character):
    """Whether a character is neither white space nor one that only steers."""
    return not character.isspace() and unicodedata.category(character)[0] != "C"


@functools.cache
def _characters(path):
    try:
        return frozenset(font_manager.get_font(path).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()
