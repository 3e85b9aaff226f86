"""Starts the `keras-transformer` command without TensorFlow's greeting.

TensorFlow's native part writes lines about CUDA to standard error while it is imported, before any
of its settings can stop it. This module stands outside the package because importing anything of
the package imports TensorFlow; a program that imports the package still sees those lines.
"""

import contextlib
import os
import sys


def main() -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # silent after the import as well
    if sys.argv[1:2] == ["serve"]:  # a server needs nothing of the package
        from keras_transformer_server.__main__ import main

        return main(sys.argv[2:])
    with _stderr_to_nowhere():
        from keras_transformer.__main__ import main
    return main()


@contextlib.contextmanager
def _stderr_to_nowhere():
    """Takes the file descriptor away, since native code does not write through `sys.stderr`."""
    sys.stderr.flush()
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
