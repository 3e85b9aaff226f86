"""The embedded corpus: dates as people write them in many languages, and in ISO 8601."""

import datetime
import random
from pathlib import Path

from babel.dates import format_date

# Six scripts.
LANGUAGES = "cs de el en es fi fr hi it ja ko nl pl pt ru sv tr zh".split()  # noqa: SIM905
FORMATS = ("full", "long", "medium")
FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)


def write_dates(directory: str | Path, sizes: dict[str, int], seed: int = 1) -> None:
    """Writes `SPLIT.text` and `SPLIT.iso` for each split, line-aligned.

    Languages and formats come from the Unicode CLDR, through babel. A date occurs in one split
    only, however it is written.

    Args:
        directory: where the files go; it must exist.
        sizes: the number of pairs of each split, such as {"train": 20_000, "test": 1_000}.
        seed: decides which date is where.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer.data.dates import write_dates
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     write_dates(directory, {"train": 3}, seed=9)
    ...     print(pathlib.Path(directory, "train.iso").read_text("utf-8"), end="")
    1966-01-05
    1904-08-31
    2022-07-24
    """
    generator = random.Random(seed)
    days = [FIRST + datetime.timedelta(days) for days in range((LAST - FIRST).days + 1)]
    generator.shuffle(days)
    total = sum(sizes.values())
    for split, size in sizes.items():
        share = len(days) * size // total
        own, days, total = days[:share], days[share:], total - size
        pairs = [_pair(generator.choice(own), generator) for _ in range(size)]
        for ending, lines in zip(("text", "iso"), zip(*pairs, strict=True), strict=True):
            text = "".join(f"{line}\n" for line in lines)
            Path(directory, f"{split}.{ending}").write_text(text, "utf-8", newline="\n")


def _pair(day, generator):
    language, style = generator.choice(LANGUAGES), generator.choice(FORMATS)
    return format_date(day, style, locale=language), day.isoformat()
