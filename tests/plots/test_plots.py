"""Pictures, by what is written in them."""

import itertools
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from keras import ops
from matplotlib import colormaps
from matplotlib.image import imread

import keras_transformer as kt
from keras_transformer.generation.tree import Node, Tree
from keras_transformer.plots import (
    attention,
    fonts,
    plot_attention,
    plot_cross_attention,
    plot_curves,
    plot_heads,
    plot_patterns,
    plot_positions,
    plot_schedule,
    plot_tree,
)
from keras_transformer.plots.attention import attention_maps
from tests.conftest import make_model

SVG = "{http://www.w3.org/2000/svg}"
GREEK = [f"▁λόγος{number}" for number in range(40)]  # as long as subwords are, in a font of ours
ARABIC = [f"سبتمبر{number}" for number in range(40)]


@pytest.fixture(scope="module")
def tokenizer():
    return kt.Tokenizer.learn(["to be or not to be"] * 9, vocabulary_size=11, kind="char")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "picture.svg"


def texts(path):
    """All that is written in an SVG."""
    return ["".join(text.itertext()) for text in ElementTree.parse(path).iter(f"{SVG}text")]


def test_every_head_of_every_layer_has_a_map_with_tokens_on_its_axes(tokenizer, path):
    model = make_model(tokenizer)  # two decoder layers of two heads
    plot_heads(path, model, tokenizer, "not", "be")
    written = texts(path)
    heads = [f"layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2)]
    assert [text for text in written if "head" in text] == heads
    assert written.count("n") == 4  # a source token, once on each map
    assert written.count("b") == 4  # a target token
    assert written.count("</s>") == 8  # the end of both
    assert "<s>" not in written


@pytest.mark.parametrize(
    ("kind", "looking", "looked_at"),
    [
        ("cross", ["▁", "b", "e", "</s>"], ["▁", "n", "o", "t", "</s>"]),
        ("encoder", ["▁", "n", "o", "t", "</s>"], ["▁", "n", "o", "t", "</s>"]),
        ("decoder", ["▁", "b", "e", "</s>"], ["<s>", "▁", "b", "e"]),
    ],
)
def test_maps_are_the_models_own_weights(kind, looking, looked_at, tokenizer):
    model = make_model(tokenizer)
    maps, columns, rows = attention_maps(model, tokenizer, "not", "be", kind)
    assert (rows, columns) == (looking, looked_at)
    assert len(maps) == (1 if kind == "encoder" else 2)
    for of_layer in maps:
        assert of_layer.shape == (2, len(rows), len(columns))
        np.testing.assert_allclose(of_layer.sum(axis=-1), 1, rtol=1e-4)
        if kind == "decoder":
            assert not np.triu(of_layer[0], 1).any()


def test_one_layer_and_one_head_can_be_chosen(tokenizer, path):
    model = make_model(tokenizer)
    plot_heads(path, model, tokenizer, "not", "be", layer=2)
    heads = ["layer 2, head 1", "layer 2, head 2"]
    assert [text for text in texts(path) if "head" in text] == heads
    plot_heads(path, model, tokenizer, "not", "be", layer=2, head=2)
    assert [text for text in texts(path) if "head" in text] == ["layer 2, head 2"]
    with pytest.raises(kt.InputError, match="layer 3, head any: the model has 2 layers of 2 heads"):
        plot_heads(path, model, tokenizer, "not", "be", layer=3)
    with pytest.raises(kt.InputError, match="layer any, head 0: the model has 2 layers"):
        plot_heads(path, model, tokenizer, "not", "be", head=0)


def test_what_is_longer_than_the_model_reads_is_drawn_as_far_as_it_reads(tokenizer):
    maps, columns, rows = attention_maps(make_model(tokenizer), tokenizer, "o" * 60, "t" * 60)
    assert maps[0].shape[1:] == (len(rows), len(columns)) == (48, 48)
    assert columns[-1] == rows[-1] == "</s>"


def test_the_mean_of_heads_has_a_map_a_layer(tokenizer, path):
    plot_cross_attention(make_model(tokenizer), tokenizer, "not", "be", path)
    assert len([text for text in texts(path) if "mean of heads" in text]) == 2


def test_forty_labels_a_side_stand_clear_of_each_other(monkeypatch):
    drawn = []
    monkeypatch.setattr(attention, "save", lambda figure, path: drawn.append(figure))
    maps = [np.full((40, 40), 1 / 40)] * 4
    plot_attention("picture.png", maps, ARABIC, GREEK, ["one", "two", "three", "four"], columns=2)
    (figure,) = drawn
    figure.draw_without_rendering()
    width, height = figure.bbox.max
    maps = figure.axes[:4]
    for axes in maps:
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            boxes = [label.get_window_extent() for label in labels]
            assert len(boxes) == 40
            assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))
            assert all(min(box.min) >= 0 and box.x1 <= width and box.y1 <= height for box in boxes)
    for one, other in itertools.combinations(maps, 2):
        assert not one.get_tightbbox().overlaps(other.get_tightbbox())


def test_small_weights_are_seen_and_negative_ones_have_a_colour_of_their_own():
    shades = attention._shades([np.array([[0.0, 0.04, 1.0]])])
    np.testing.assert_allclose(shades["norm"]([0.0, 0.04, 1.0]), [0, 0.2, 1], atol=1e-6)
    shades = attention._shades([np.array([[-2.0, 0.0, 1.0]])])
    np.testing.assert_allclose(shades["norm"]([-2.0, 0.0, 2.0]), [0, 0.5, 1], atol=1e-6)


def test_labels_are_taken_as_they_are(path):
    tokens = ["$x$", "a_b^c", "<&>", "tab\there", "\\frac"]
    plot_attention(path, [np.eye(5)], tokens, tokens, ["t"])
    assert set(texts(path)) >= {"$x$", "a_b^c", "<&>", "tab\ufffdhere", "\\frac"}


@pytest.mark.parametrize("ending", ["png", "svg", "PNG"])
def test_the_ending_decides_the_format_and_a_picture_is_always_the_same_file(ending, tmp_path):
    written = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.{ending}"
        plot_positions(path, np.eye(4))
        written.append(path.read_bytes())
    begin = b"<?xml" if ending == "svg" else b"\x89PNG"
    assert written[0].startswith(begin)
    assert written[0] == written[1]


def test_other_endings_and_far_too_large_pictures_are_refused(tmp_path):
    for name in ("picture.jpeg", "picture"):
        with pytest.raises(kt.InputError, match=r"a \.png or \.svg file"):
            plot_positions(tmp_path / name, np.eye(4))
    with pytest.raises(kt.InputError, match="its directory is not there"):
        plot_positions(tmp_path / "no" / "picture.png", np.eye(4))
    tokens = ["a"] * 1000
    with pytest.raises(kt.InputError, match="dots, too many"):
        plot_attention(tmp_path / "picture.png", [np.eye(1000)], tokens, tokens, ["t"])
    assert not list(tmp_path.iterdir())


def test_a_script_without_a_font_is_told_in_one_line_and_stays_text(path, monkeypatch, caplog):
    monkeypatch.setattr(fonts, "installed_fonts", dict)
    tokens = ["日本語", "हिन्दी", "the"]
    plot_attention(path, [np.eye(3)], tokens, tokens, ["t"])
    plot_attention(path.with_suffix(".png"), [np.eye(3)], tokens, tokens, ["t"])
    assert set(texts(path)) >= set(tokens)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2  # one for each picture
    assert "日" in messages[0]
    assert "fonts-noto-cjk and fonts-noto-core" in messages[0]
    assert "\n" not in messages[0]


def test_fonts_are_looked_for_that_have_what_the_first_has_not(monkeypatch):
    has = {"Kana": "かな", "Han": "日本語", "Few": "日"}
    sets = {name: frozenset(map(ord, characters)) for name, characters in has.items()}
    monkeypatch.setattr(fonts, "installed_fonts", lambda: sets)
    assert fonts.find_fonts("in 日本") == (["DejaVu Sans", "Han"], "")
    assert fonts.find_fonts("日本かな語\n\u200d") == (["DejaVu Sans", "Han", "Kana"], "")
    assert fonts.find_fonts("かक") == (["DejaVu Sans", "Kana"], "क")


def test_no_font_of_boxes_counts_as_one_that_can_write():
    families = fonts.installed_fonts()
    assert "DejaVu Sans" in families
    assert not any("Last Resort" in family for family in families)
    assert all(0x10FFFD not in characters for characters in families.values())


def test_curves_have_a_panel_for_what_was_measured(path):
    measured = {"loss": 3.0, "val_loss": 4.0, "accuracy": 0.5, "val_bleu": float("nan")}
    plot_curves(path, [{"epoch": epoch, **measured} for epoch in range(3)])
    written = texts(path)
    assert {"loss", "accuracy of tokens"} <= set(written)
    assert "BLEU" not in written
    assert (written.count("training"), written.count("validation")) == (2, 1)


def test_a_schedule_says_where_it_is_highest_and_comes_down_to_nothing(path):
    schedule = kt.WarmupSchedule(3e-3, warmup_steps=100, cooldown_steps=50, total_steps=5000)
    plot_schedule(path, schedule, steps=5000, title="ten epochs")
    assert {"highest: 3.00e-03 at update 100", "ten epochs"} <= set(texts(path))
    (curve,) = [
        part.get("d")
        for part in ElementTree.parse(path).iter(f"{SVG}path")
        if "stroke: #1f77b4" in part.get("style", "") and "L" in part.get("d")
    ][:1]
    heights = [float(y) for _, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", curve)]
    assert heights[-1] > heights[len(heights) // 2] > min(heights)  # down is more in an SVG


def test_patterns_have_shades_of_their_own_scale_and_red_for_negative_weights(tmp_path):
    path = tmp_path / "patterns.png"
    maps = {"small": np.array([[0.04, 0.01], [0.0, -0.04]]), "nothing": np.zeros((2, 3))}
    plot_patterns(path, maps)
    drawn = {tuple(color) for color in (255 * imread(path)[..., :3]).round().reshape(-1, 3)}
    # 1, a quarter, 0 and -1 of the largest, by their roots, from red (0) to blue (1).
    expected = colormaps["RdBu"]([1.0, 0.75, 0.5, 0.0], bytes=True)[:, :3]
    assert {tuple(map(float, color)) for color in expected} <= drawn


def test_sinusoids_are_drawn_with_all_their_places(path):
    encodings = kt.SinusoidalPositions()(ops.zeros((1, 50, 128)))[0]
    plot_positions(path, ops.convert_to_numpy(encodings), "fifty")
    assert {"fifty", "position", "component", "40", "120"} <= set(texts(path))


A, B, END = 3, 4, 2
PIECES = {A: "▁alpha", B: "▁beta", END: "</s>"}
LETTERS = Tree(
    [
        [Node((A,), -0.51), Node((B,), -0.92)],
        [Node((B, END), -1.02, -0.91), Node((A, A), -1.53), Node((A, B), -1.59)],
    ],
    best=(B, END),
)


def test_a_tree_has_every_hypothesis_and_the_best_in_bold(path):
    plot_tree(path, LETTERS, PIECES.get)
    written = texts(path)
    assert [written.count(piece) for piece in ("▁alpha", "▁beta", "</s>")] == [2, 2, 1]
    assert {"-0.51", "-0.92", "-1.02", "-1.53", "-1.59", "-0.91"} <= set(written)
    bold = [
        "".join(text.itertext())
        for text in ElementTree.parse(path).iter(f"{SVG}text")
        if "bold" in text.get("style") or "700" in text.get("style")
    ]
    assert bold == ["▁beta", "</s>", "score", "-0.91"]


def test_what_was_dropped_is_faint_and_the_best_is_a_line_of_its_own():
    from keras_transformer.plots import tree

    three = Tree([*LETTERS.places, [Node((A, A, A), -2.0)]], best=(B, END))
    nodes = tree._select(three, 9, 9)
    kinds = tree._kinds(nodes, three)
    assert kinds[B,] == kinds[B, END] == "best"
    assert kinds[A,] == kinds[A, A] == kinds[A, A, A] == "open"
    assert kinds[A, B] == "dropped"
    lanes = tree._lanes(nodes, three.best)
    assert lanes[B,] == lanes[B, END] == 0
    assert lanes[A,] == lanes[A, A] == lanes[A, A, A] == 1
    assert lanes[A, B] == 2
    places = [(len(ids), lane) for ids, lane in lanes.items()]
    assert len(set(places)) == len(places)


def test_a_tree_that_leaves_something_out_says_so(path):
    plot_tree(path, LETTERS, PIECES.get, steps=1)
    written = texts(path)
    assert "</s>" not in written
    assert any("Drawn: the first 1 of 2 steps." in text for text in written)
    plot_tree(path, LETTERS, PIECES.get, width=1)
    written = texts(path)
    assert "▁alpha" not in written
    assert {"▁beta", "</s>"} <= set(written)
    assert any("Drawn: the 1 best of each step." in text for text in written)
