"""Files of sentence pairs: two line-aligned files or one TSV, plain or gzip, in UTF-8."""

import gzip
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from keras_transformer.errors import InputError


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a UTF-8 file, gzip if its name ends in .gz, without their line ends."""
    try:
        with gzip.open(path) if str(path).endswith(".gz") else open(path, "rb") as file:
            yield from decode_lines(file, path)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file.") from None
    except IsADirectoryError:
        raise InputError(f"{path}: this is a directory; a file is expected.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"{path}: not a whole gzip file ({error}). A plain file's name must not end in .gz."
        ) from None


def decode_lines(file: Iterable[bytes], name: str | Path) -> Iterator[str]:
    """The lines of an open file without their line ends; `name` is what an error calls it."""
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name}, line {number}: not UTF-8 (byte {line[error.start]:#04x} at column "
                f"{error.start + 1}). Convert it, for instance with iconv -t UTF-8."
            ) from None


def read_pairs(files: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The pairs of one TSV file or of two line-aligned files; fails at the first that is not one.

    Args:
        files: (tsv,) or (source, target).
    """
    number = 0
    if len(files) == 1:
        for number, line in enumerate(read_lines(files[0]), start=1):
            fields = line.split("\t")
            if len(fields) != 2:
                raise InputError(
                    f"{files[0]}, line {number}: {len(fields) - 1} tabs, but expected 1, between "
                    "source and target."
                )
            yield fields[0], fields[1]
    else:
        for source, target in itertools.zip_longest(*map(read_lines, files)):
            if source is None or target is None:
                lines = [sum(1 for _ in read_lines(file)) for file in files]
                raise InputError(
                    f"{files[0]} has {lines[0]} lines and {files[1]} has {lines[1]}: line N of one "
                    "must translate line N of the other."
                )
            number += 1
            yield source, target
    if number == 0:
        raise InputError(f"{' and '.join(files)}: no lines. Give a file with sentence pairs.")


def check_alignments(path: str, files: tuple[str, ...]) -> None:
    """Fails if a file does not hold word alignments of the pairs, "0-0 1-2" each."""
    lines = sum(1 for _ in read_lines(path))
    pairs = sum(1 for _ in read_pairs(files))
    if lines != pairs:
        raise InputError(
            f"{path} has {lines} lines, {' and '.join(files)} {pairs}: line N must align pair N."
        )
    both = zip(read_lines(path), read_pairs(files), strict=True)
    for number, (line, pair) in enumerate(both, start=1):
        words = [len(side.split()) for side in pair]
        for link in line.split():
            numbers = re.fullmatch(r"(\d+)-(\d+)", link)
            if not numbers:
                raise InputError(
                    f"{path}, line {number}: {link!r} is no link of a source word to a target "
                    "word; expected such as 0-0 1-2, words counted from 0."
                )
            if any(int(one) >= count for one, count in zip(numbers.groups(), words, strict=True)):
                raise InputError(
                    f"{path}, line {number}: {link!r} is beyond the {words[0]} words of the source "
                    f"or the {words[1]} of the target; words are counted from 0."
                )
