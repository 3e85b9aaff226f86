"""Pictures of beam searches: the tree of all hypotheses."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.path import Path as Line

from keras_transformer.generation.tree import Tree
from keras_transformer.plots.file import check_size, save
from keras_transformer.plots.labels import inches, shorten

STEPS, WIDTH = 40, 8  # what can still be read
POINTS = 8  # of the tokens
BOX, GAP, LANE = 0.32, 0.3, 0.42  # inches: a box's height, between two columns, a lane's height
HEAD, MARGIN = 0.6, 0.2  # inches of the lines above, and around
LEAST_WIDTH = 7.0  # inches, for the lines above
STYLES = {  # of a hypothesis: the best, one that ended or was still open, one that was dropped
    "best": dict(edge="tab:blue", fill="#d6e6f5", text="black", line=2.0, weight="bold"),
    "open": dict(edge="0.35", fill="white", text="black", line=1.0, weight="normal"),
    "dropped": dict(edge="0.8", fill="white", text="0.55", line=0.8, weight="normal"),
}


def plot_tree(
    path: str | Path,
    tree: Tree,
    piece: Callable[[int], str],
    steps: int = STEPS,
    width: int = WIDTH,
) -> None:
    """Draws a beam search: a column a step, a box a hypothesis with its last token and its log P.

    The best one is the line on top, in bold; what was dropped on the way is faint. Where steps or
    hypotheses are left out, the picture says so.

    Args:
        path: where the picture goes, a .png or .svg file.
        tree: what `generation.tree` has noted of the search.
        piece: the text of an id.
        steps: how many steps are drawn at most.
        width: how many hypotheses of each step are drawn at most, and those that they continue.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_transformer.generation.tree import Node, Tree
    >>> from keras_transformer.plots import plot_tree
    >>> first = [Node((3,), -0.1), Node((4,), -2.4)]
    >>> tree = Tree([first, [Node((3, 2), -0.5, -0.45)]], best=(3, 2))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "beam.svg")
    ...     plot_tree(path, tree, {2: "</s>", 3: "yes", 4: "no"}.get)
    ...     "yes" in path.read_text("utf-8")
    True
    """
    nodes = _select(tree, steps, width)
    lanes = _lanes(nodes, tree.best)
    labels = {ids: shorten(piece(ids[-1])) for ids in nodes}
    box = max(inches(labels.values(), POINTS) * 1.1, 0.4)  # bold is wider
    pitch = box + GAP
    # A column more, for the score of what ended in the last one.
    size_x = max(MARGIN * 2 + GAP + (max(map(len, nodes)) + 1) * pitch, LEAST_WIDTH)
    size_y = HEAD + MARGIN + (max(lanes.values()) + 1) * LANE
    check_size(path, size_x, size_y)
    figure = Figure(figsize=(size_x, size_y))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, size_x), ylim=(size_y, 0))
    axes.set_axis_off()
    kinds = _kinds(nodes, tree)
    above = _describe(tree, nodes, steps, width, "dropped" in kinds.values())
    axes.text(MARGIN, MARGIN, above, fontsize=9, va="top")
    lanes[()] = 0  # where all begin, which is no box
    axes.plot(MARGIN, HEAD + LANE / 2, "o", color=STYLES["best"]["edge"], zorder=2)
    for ids, node in nodes.items():
        style = STYLES[kinds[ids]]
        x, y = MARGIN + GAP + (len(ids) - 1) * pitch, HEAD + (lanes[ids] + 0.5) * LANE
        _connect(axes, (x - GAP, HEAD + (lanes[ids[:-1]] + 0.5) * LANE), (x, y), style)
        _draw_box(axes, node, labels[ids], (x, y), box, style)
    save(figure, path)


def _draw_box(axes, node, label, left, width, style):
    """A hypothesis; its score, where it has ended, stands to the right."""
    (x, y), middle = left, left[0] + width / 2
    shape = FancyBboxPatch(
        (x, y - BOX / 2), width, BOX, boxstyle="round,pad=0,rounding_size=0.06",
        facecolor=style["fill"], edgecolor=style["edge"], linewidth=style["line"], zorder=2,
    )  # fmt: skip
    axes.add_patch(shape)
    text = dict(va="center", color=style["text"], zorder=3)
    bold = dict(text, weight=style["weight"])
    axes.text(middle, y - 0.055, label, fontsize=POINTS, ha="center", **bold)
    axes.text(middle, y + 0.095, f"{node.log_probability:.2f}", fontsize=6, ha="center", **text)
    if node.score is not None:
        clear = dict(facecolor="white", edgecolor="none", pad=0.5)  # of lines that pass
        axes.text(x + width + 0.06, y, f"score\n{node.score:.2f}", fontsize=6, bbox=clear, **bold)


def _describe(tree, nodes, steps, width, dropped):
    """The lines above."""
    drawn = []
    if len(tree.places) > steps:
        drawn.append(f"the first {steps} of {len(tree.places)} steps")
    if len(nodes) < sum(map(len, tree.places[:steps])):
        drawn.append(f"the {width} best of each step")
    return (
        "Each box is a hypothesis that the search has kept: its last token, and log P of it all.\n"
        "Blue: the best."
        + (" Grey: dropped on the way." if dropped else "")
        + (f" Drawn: {', '.join(drawn)}." if drawn else "")
    )


def _select(tree, steps, width):
    """The nodes that are drawn, by their ids, those of early steps first."""
    chosen = set()
    for number, place in enumerate(tree.places[:steps], start=1):
        best_first = sorted(place, key=lambda node: node.ids != tree.best[:number])
        for node in best_first[:width]:
            chosen.update(node.ids[:end] for end in range(1, number + 1))
    return {node.ids: node for place in tree.places for node in place if node.ids in chosen}


def _kinds(nodes, tree):
    """The style of each node."""
    last = {node.ids for node in tree.places[-1]}
    stays = {
        ids[:end]
        for place in tree.places
        for ids, _, score in place
        if score is not None or ids in last
        for end in range(1, len(ids) + 1)
    }
    return {
        ids: "best" if ids == tree.best[: len(ids)] else "open" if ids in stays else "dropped"
        for ids in nodes
    }


def _lanes(nodes, best):
    """The row of each node: a line of descent stays in one, the best one in the first.

    Like the branches in the history of a repository: each takes the nearest row that is free for as
    long as it lasts.
    """
    children = {}
    for ids in nodes:
        children.setdefault(ids[:-1], []).append(ids)

    depths = {}
    for ids in reversed(nodes):  # late ones first
        depths[ids] = max((depths[child] for child in children.get(ids, [])), default=len(ids))

    def rank(ids):
        return ids == best[: len(ids)], depths[ids], nodes[ids].log_probability

    lanes, used = {}, {}  # lane -> the columns that are taken
    for ids in sorted(nodes, key=lambda ids: (len(ids), not rank(ids)[0])):
        if ids in lanes:
            continue
        line = [ids]
        while heirs := children.get(line[-1]):
            line.append(max(heirs, key=rank))
        # And one more column, where the score of what ended stands.
        columns = set(range(len(ids), len(line[-1]) + 1 + (nodes[line[-1]].score is not None)))
        near = lanes.get(ids[:-1], 0)
        lane = min(
            (lane for lane in range(len(nodes)) if not columns & used.get(lane, set())),
            key=lambda lane: abs(lane - near),
        )
        used.setdefault(lane, set()).update(columns)
        lanes.update(dict.fromkeys(line, lane))
    return lanes


def _connect(axes, begin, end, style):
    """A line from one box to the next, that leaves and comes in level."""
    middle = (begin[0] + end[0]) / 2
    points = [begin, (middle, begin[1]), (middle, end[1]), end]
    line = Line(points, [Line.MOVETO, Line.CURVE4, Line.CURVE4, Line.CURVE4])
    axes.add_patch(
        PathPatch(line, facecolor="none", edgecolor=style["edge"], linewidth=style["line"])
    )
