"""Pictures as files."""

import warnings
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text

from keras_transformer.errors import InputError
from keras_transformer.plots.fonts import find_fonts, tell_missing

ENDINGS = (".png", ".svg")
DOTS = 150  # of PNG, an inch
MOST_DOTS = 100_000_000  # more would need more than half a gigabyte of memory
MOST_DOTS_A_SIDE = 2**16 - 1  # matplotlib's


def check_path(path: str | Path) -> None:
    """Refuses a path that no picture can be written to, before any work is done for it."""
    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"{path}: a picture is a .png or .svg file: let its name end so.")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: its directory is not there. Make it first.")


def check_size(path: str | Path, width: float, height: float) -> None:
    """Refuses a picture of so many inches if it is too large, before it is drawn."""
    width, height = width * DOTS, height * DOTS
    large = width * height > MOST_DOTS or max(width, height) > MOST_DOTS_A_SIDE
    if large and Path(path).suffix.lower() == ".png":
        raise InputError(
            f"{path}: the picture would have {width:,.0f} by {height:,.0f} dots, too many. "
            "Draw less of it, or write an .svg file."
        )


def save(figure: Figure, path: str | Path) -> None:
    """Writes a picture in the format that its path ends with, in fonts that have its characters.

    Text of an SVG stays text, so that it can be searched, and whoever looks at it may have fonts
    that are not here.
    """
    check_path(path)
    _prepare_texts(figure)
    # The salt, and no date, so that the same picture is the same file.
    options = {"svg.fonttype": "none", "svg.hashsalt": "keras_transformer"}
    metadata = {"Date": None} if Path(path).suffix.lower() == ".svg" else None
    with warnings.catch_warnings(), matplotlib.rc_context(options):
        warnings.filterwarnings("ignore", "Glyph .* missing")  # has been told, in one line
        figure.savefig(path, dpi=DOTS, metadata=metadata)


def _prepare_texts(figure):
    """Gives all texts fonts that have their characters."""
    texts = figure.findobj(Text)
    families, missing = find_fonts({character for text in texts for character in text.get_text()})
    if missing:
        tell_missing(missing)
    for text in texts:
        text.set_fontfamily(families)
        text.set_parse_math(False)  # a dollar is a dollar
