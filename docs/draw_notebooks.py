"""Draws docs/pictures/ and writes docs/pictures.md, by running the notebooks: make pictures."""

import base64
import io
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.notebooks.execute import execute  # noqa: E402

PAGE = ROOT / "docs" / "pictures.md"
DIRECTORY = ROOT / "docs" / "pictures"
OPENING = """\
# Pictures of the notebooks

The notebooks in [colab](../colab/README.md) are kept without outputs. These are some of the
pictures that they draw; `make pictures` runs them and draws these anew.
"""
# By notebook: the cell that draws it, the picture's name, and what is to be seen. Of the pictures
# of a cell it is the last.
PICTURES = {
    "quickstart": {
        "cell-17": ("dates", "Where the model looks while it writes a date."),
    },
    "transformer_step_by_step": {
        "residual-gradient": ("residual", "The gradient through 24 layers, with residuals or not."),
        "four-steps-picture": ("four_steps", "Attention in four steps."),
        "why-scale-measured": ("scale", "Why scores are scaled: their variance, measured."),
        "masks-picture": ("masks", "The three masks: blue may be seen."),
        "cheating-trained": ("cheating", "Without the future mask a decoder learns to cheat."),
        "positions-picture": ("positions", "The positional encoding."),
        "shift-found": ("shift", "A shift of positions is a linear map: found, and written down."),
        "tagger-picture": ("it", "What \"it\" looks at, in two sentences."),
        "smoothing-picture": ("smoothing", "Label smoothing, and what confidence costs."),
        "warmup-picture": ("warmup", "Warm-up."),
        "free-running-picture": ("free_running", "Teacher forcing against free running."),
        "looks-picture": ("heads", "What each head looks at."),
        "beam-picture": ("beam", "The whole tree: greedy search goes A, B, B; B, B, B is best."),
        "beam-real-picture": ("beams", "Four beams, and a month that there is not."),
        "bleu-picture": ("bleu", "BLEU: n-grams that are found, and a penalty for what is short."),
    },
    "attention_zoo": {
        "patterns-picture": ("patterns", "Patterns: which place sees which."),
        "features-picture": ("features", "Random features: the more, the smaller the error."),
        "task-picture": ("recall", "Associative recall: speed, score and memory."),
    },
}  # fmt: skip


def pictures(notebook):
    """The pictures of each cell of an executed notebook, as PNG."""
    return {
        cell.id: [
            base64.b64decode(output.data["image/png"])
            for output in cell.get("outputs", ())
            if "image/png" in output.get("data", ())
        ]
        for cell in notebook.cells
    }


def main():
    DIRECTORY.mkdir(exist_ok=True)
    for name, kept in PICTURES.items():
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as directory:
            drawn = pictures(execute(ROOT / "colab" / f"{name}.ipynb", Path(directory)))
        print(f"{name}: {time.perf_counter() - begun:.0f} s")
        for cell, (picture, _) in kept.items():
            png = drawn[cell][-1]
            width = matplotlib.image.imread(io.BytesIO(png)).shape[1]
            (DIRECTORY / f"{picture}.png").write_bytes(png)
            print(f"  {picture}.png: {len(png) / 1024:.0f} KB, {width} pixels wide")
    PAGE.write_text(page(), "utf-8")


def page():
    """The page, which needs no drawing."""
    lines = [OPENING]
    for name, kept in PICTURES.items():
        lines.append(f"## [{name}](../colab/{name}.ipynb)\n")
        lines += [
            f"{caption}\n\n![{caption}](pictures/{picture}.png)\n"
            for picture, caption in kept.values()
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
