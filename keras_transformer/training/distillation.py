"""Sequence-level knowledge distillation: a student learns from what its teacher writes."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

from keras_transformer.data.corpus import read_pairs
from keras_transformer.errors import InputError
from keras_transformer.training.checkpoint import write_atomically
from keras_transformer.training.progress import duration

CHUNK = 1000  # lines between two writes of the file


def distill(
    translate: Callable[[Sequence[str]], list[str]],
    sources: Iterable[str],
    path: str | Path,
    resume: bool = False,
    say=print,
) -> int:
    """Writes each source and its translation by the teacher, between tabs: a corpus for a student.

    The mode of the teacher's distribution, by beam search, stands in for the distribution (Kim and
    Rush 2016, "Sequence-Level Knowledge Distillation", section 3.2). Sources whose translation is
    empty are left out of the corpus by training, as any pair with an empty side is.

    Args:
        translate: the teacher, such as a `Translator`.
        sources: lines.
        path: a TSV file.
        resume: whether to go on with one that is there, whose pairs this teacher has written.
        say: called with lines that tell how far it is.

    Returns:
        How many pairs the file has.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from keras_transformer.training.distillation import distill
    >>> path = Path(tempfile.mkdtemp()) / "pairs.tsv"
    >>> distill(lambda lines: [line.upper() for line in lines], ["a b", "c"], path, say=lambda _: 0)
    2
    >>> path.read_text()
    'a b\\tA B\\nc\\tC\\n'
    """
    path = Path(path)
    if path.exists() and not resume:
        raise InputError(
            f"{path}: is there already. Add --resume to go on with what the same teacher has "
            "written, or choose another --output."
        )
    sources = [source.replace("\t", " ") for source in sources]
    done = _cut(path, sources) if path.exists() else 0
    if done:
        say(f"{path}: {done:,} pairs are there already")
    began, first, rest = time.monotonic(), done, iter(sources[done:])
    with open(path, "a", encoding="utf-8") as file:
        while chunk := list(islice(rest, CHUNK)):
            pairs = zip(chunk, translate(chunk), strict=True)
            file.writelines(f"{source}\t{translation}\n" for source, translation in pairs)
            file.flush()
            done += len(chunk)
            speed = (done - first) / (time.monotonic() - began)
            left = duration((len(sources) - done) / speed)
            say(f"{done:,} of {len(sources):,} lines, {speed:.0f} lines/s, ETA {left}")
    return done


def _cut(path, sources):
    """How many pairs of a file are whole; what a kill has left of another one is cut off."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if whole != text:
        write_atomically(path, lambda part: part.write_bytes(whole))
    pairs = list(read_pairs((str(path),))) if whole else []
    if [source for source, _ in pairs] != sources[: len(pairs)]:
        raise InputError(f"{path}: holds other pairs than these. Choose another --output.")
    return len(pairs)
