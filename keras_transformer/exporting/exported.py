"""An exported model, used again in Python."""

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.exporting.saved_model import versions


class ExportedTranslator:
    """Translates lines of text with a SavedModel: its `serving_default`, as a server would.

    Args:
        path: what `export` was given, of which the last version is taken, or one version of it.
        lines_per_batch: lines of like length are translated together, up to this many.

    Example:

    >>> import tempfile
    >>> from keras_transformer import ExportedTranslator, export
    >>> from keras_transformer import ModelConfig, Tokenizer, Transformer
    >>> tokenizer = Tokenizer.learn(["to be or not to be"] * 9, vocabulary_size=11, kind="char")
    >>> config = ModelConfig.preset("tiny", vocabulary_size=11, encoder_layers=1, decoder_layers=1)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     _ = export(Transformer(config), tokenizer, directory)
    ...     translations = ExportedTranslator(directory)(["to be", ""])
    >>> translations[1]  # of nothing, nothing
    ''
    """

    def __init__(self, path: str | Path, lines_per_batch: int = 64):
        self.path = _version(path)
        self.lines_per_batch = lines_per_batch
        self._model = tf.saved_model.load(str(self.path))
        self._translate = self._model.signatures["serving_default"]

    def __call__(self, lines: Sequence[str]) -> list[str]:
        """The translation of each line; of an empty line, an empty one."""
        translations = [""] * len(lines)
        rows = sorted(range(len(lines)), key=lambda row: len(lines[row]))
        for first in range(0, len(rows), self.lines_per_batch):
            batch = rows[first : first + self.lines_per_batch]
            found = self._translate(text=tf.constant([lines[row] for row in batch]))
            for row, text in zip(batch, found["text"].numpy(), strict=True):
                translations[row] = text.decode("utf-8")
        return translations


def is_exported(path: str | Path) -> bool:
    """Whether a path holds an exported model, or is a version of one."""
    return (Path(path) / "saved_model.pb").exists() or bool(versions(path))


def _version(path):
    path = Path(path)
    if (path / "saved_model.pb").exists():
        return path
    if not versions(path):
        raise InputError(f"{path}: no exported model is there. Export one first.")
    return path / str(versions(path)[-1])
