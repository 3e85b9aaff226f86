"""What each head does, in one line: "4 * dot + 2 * local(window=64) + 2 * linear".

Layers that differ are separated by semicolons: "local(window=64); local(window=64); dot".
"""

import ast
import difflib
from typing import Any, NamedTuple

from keras_transformer.attention import MECHANISMS


class HeadGroup(NamedTuple):
    """Heads that share a mechanism."""

    count: int
    name: str
    options: dict[str, Any]


def parse_layers(spec: str, num_layers: int) -> list[str]:
    """The head spec of each layer: those of the line, over and over until there are enough.

    Example:

    >>> from keras_transformer.attention.spec import parse_layers
    >>> parse_layers("local(window=64); dot", num_layers=3)
    ['local(window=64)', 'dot', 'local(window=64)']
    """
    specs = [each.strip() for each in spec.split(";")]
    if len(specs) > num_layers:
        raise ValueError(
            f"The head spec {spec!r} describes {len(specs)} layers, but there are {num_layers}."
        )
    return [specs[layer % len(specs)] for layer in range(num_layers)]


def parse_heads(spec: str, num_heads: int) -> list[HeadGroup]:
    """Reads a head spec: terms `count * name(option=value)` joined by `+`.

    A term without a count stands for one head, except that a single such term stands for all.

    Example:

    >>> from keras_transformer.attention.spec import parse_heads
    >>> parse_heads("dot", num_heads=8)
    [HeadGroup(count=8, name='dot', options={})]
    >>> [group.count for group in parse_heads("3 * dot + dot", num_heads=4)]
    [3, 1]
    """
    try:
        terms = _terms(ast.parse(" ".join(spec.split()), mode="eval").body)
        counted = [_count(term) for term in terms]
        if len(counted) == 1 and counted[0][0] is None:
            counted = [(num_heads, counted[0][1])]
        groups = [
            HeadGroup(1 if count is None else count, *_mechanism(term)) for count, term in counted
        ]
    except (SyntaxError, TypeError) as error:
        raise ValueError(
            f"The head spec {spec!r} cannot be read: {error}. "
            'Expected terms such as "dot" or "4 * dot + 4 * local(window=64)".'
        ) from None
    for group in groups:
        if group.name not in MECHANISMS:
            near = difflib.get_close_matches(group.name, MECHANISMS, cutoff=0.5) or MECHANISMS
            raise ValueError(
                f"Unknown attention mechanism {group.name!r} in the head spec {spec!r}. "
                f"Did you mean: {', '.join(near)}?"
            )
    total = sum(group.count for group in groups)
    if total != num_heads or any(group.count < 1 for group in groups):
        raise ValueError(
            f"The head spec {spec!r} names {total} heads, but num_heads is {num_heads}. "
            "The counts must be positive and add up to num_heads."
        )
    return groups


def _terms(node):
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_terms(node.left), *_terms(node.right)]
    return [node]


def _count(node):
    """A term's count, None where it has none, and the rest of the term."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return None, node
    if isinstance(node.left, ast.Constant) and type(node.left.value) is int:
        return node.left.value, node.right
    raise TypeError(f"{ast.unparse(node.left)!r} is not a number of heads")


def _mechanism(node):
    """The name and the options of `name` or `name(option=value)`."""
    if isinstance(node, ast.Name):
        return node.id, {}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        try:
            options = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
        except ValueError:
            raise TypeError(f"an option of {ast.unparse(node)!r} is not a plain value") from None
        if None not in options:  # that would be a **mapping
            return node.func.id, options
    raise TypeError(f"{ast.unparse(node)!r} is not a mechanism with named options")
