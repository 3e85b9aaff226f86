"""Runs a notebook from top to bottom, in a fresh kernel."""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

SECONDS = 1800  # of a cell, at most, so that one that hangs is found; no measure of speed


def execute(path: Path, directory: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs; it works in `directory`."""
    notebook = nbformat.reads(path.read_text("utf-8"), as_version=4)
    NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        extra_arguments=["--InteractiveShell.colors=nocolor"],
        resources={"metadata": {"path": str(directory)}},
    ).execute()
    return notebook
