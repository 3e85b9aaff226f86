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
# By notebook: the cell that draws it, the picture's name, and what is to be seen.
PICTURES = {
    "quickstart": {
        "cell-17": ("dates", "Where the model looks while it writes a date."),
    },
    "transformer_step_by_step": {
        "residual-gradient": ("residual", "The gradient through 24 layers, with residuals or not."),
        "why-scale-measured": ("scale", "Why scores are scaled: their variance, measured."),
        "masks-picture": ("masks", "The three masks."),
        "positions-picture": ("positions", "The positional encoding."),
        "shift-found": ("shift", "A shift of positions is a linear map: found, and written down."),
        "smoothing-picture": ("smoothing", "Label smoothing, and what confidence costs."),
        "warmup-picture": ("warmup", "Warm-up."),
        "free-running-picture": ("free_running", "Teacher forcing against free running."),
        "beam-picture": ("beam", "Greedy search takes the wrong turn, a beam does not."),
    },
    "attention_zoo": {
        "patterns-picture": ("patterns", "Patterns: which place sees which."),
        "features-picture": ("features", "Random features: the more, the smaller the error."),
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
    page = [OPENING]
    for name, kept in PICTURES.items():
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as directory:
            drawn = pictures(execute(ROOT / "colab" / f"{name}.ipynb", Path(directory)))
        print(f"{name}: {time.perf_counter() - begun:.0f} s")
        page.append(f"## [{name}](../colab/{name}.ipynb)\n")
        for cell, (picture, caption) in kept.items():
            png = drawn[cell][0]
            width = matplotlib.image.imread(io.BytesIO(png)).shape[1]
            (DIRECTORY / f"{picture}.png").write_bytes(png)
            print(f"  {picture}.png: {len(png) / 1024:.0f} KB, {width} pixels wide")
            page.append(f"{caption}\n\n![{caption}](pictures/{picture}.png)\n")
    PAGE.write_text("\n".join(page), "utf-8")


if __name__ == "__main__":
    main()
