import pytest

from keras_transformer.attention.spec import parse_heads, parse_layers


def test_one_name_stands_for_all_heads():
    assert parse_heads("dot", 8) == [(8, "dot", {})]


def test_a_line_may_be_broken():
    assert parse_heads("\n  dot\n  + dot(\n  bias='t5')\n", 2)[1] == (1, "dot", {"bias": "t5"})


def test_counts_and_options_are_read():
    assert parse_heads("2 * dot(scale=1.0, kind='a') + dot", 3) == [
        (2, "dot", {"scale": 1.0, "kind": "a"}),
        (1, "dot", {}),
    ]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dott", "Did you mean: dot"),
        ("3 * dot", "names 3 heads, but num_heads is 4"),
        ("5 * dot + -1 * dot", "is not a number of heads"),
        ("0 * dot + 4 * dot", "must be positive"),
        ("4 * dot(", "cannot be read"),
        ("4 * dot(3)", "is not a mechanism with named options"),
        ("4 * dot(window=__import__('os'))", "is not a plain value"),
        ("4 * dot(**{})", "is not a mechanism with named options"),
        ("", "cannot be read"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(spec, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace("*", r"\*")):
        parse_heads(spec, 4)


def test_layers_take_turns():
    assert parse_layers("dot", 3) == ["dot", "dot", "dot"]
    assert parse_layers("dot; linear", 3) == ["dot", "linear", "dot"]
    with pytest.raises(ValueError, match="describes 3 layers, but there are 2"):
        parse_layers("dot; linear; dot", 2)
