"""Writes docs/configuration.md from the config dataclasses themselves: make docs."""

import dataclasses
import inspect
import re
import typing
from pathlib import Path

from keras_transformer.config import PRESETS, ModelConfig
from keras_transformer.config_file import NOT_IN_FILES, TABLES
from keras_transformer.training.preparation import RESUMABLE

PAGE = Path(__file__).parent / "configuration.md"
TYPES = {int: "whole number", float: "number", bool: "`true` or `false`", str: "text"}
OPENING = """\
# Configuration

A run is described by a TOML file with the tables below. Everything but the training data may be
left out. `keras-transformer train config.toml training.epochs=20` sets fields over those of the
file; `translate`, `evaluate`, `export` and `distill` take `decoding.*` in the same way. In Python,
`read_config("config.toml", ["training.epochs=20"])` returns a `RunConfig`. Paths are taken from the
directory in which the command runs. A field that is not known, has another type or a value that it
cannot have is refused, with the file, the line and what would do.

This page is made by `make docs` from the dataclasses in
[`keras_transformer/config`](../keras_transformer/config), and a test compares the two.

"""
MODEL = """\
The size of the vocabulary is `tokenizer.vocabulary_size`, so it cannot be set here. `preset` sets
several fields at once; a field that is set beside it keeps its own value. What `encoder_heads`,
`decoder_heads` and `cross_heads` can be is told in [attention.md](attention.md).

"""
RESUME = """\
## What may change on `--resume`

A run goes on as it began: with `--resume`, a config that differs from the run's own is refused,
except in [`[decoding]`](#decoding) and in these fields, on which no update so far depends
(`training.bleu_pairs` may not change where BLEU chooses the weights, or when to stop):

"""


def page() -> str:
    """The whole page."""
    sections = [section(name, config) for name, config in TABLES.items()]
    resumable = [
        f"`{name}.{field.name}`"
        for name, config in TABLES.items()
        for field in dataclasses.fields(config)
        if f"{name}.{field.name}" in RESUMABLE
    ]
    resume = RESUME + "\n".join(f"- {name}" for name in resumable) + "\n"
    return OPENING + "\n".join([*sections, resume])


def section(name: str, config: type) -> str:
    """The heading, what the table is for, and a row for each entry of the docstring's `Args`."""
    summary = inspect.cleandoc(config.__doc__).split("\n\n")[0].replace("\n", " ")
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    if config is ModelConfig:
        summary += "\n\n" + MODEL.strip()
        names = ", ".join(f'`"{preset}"`' for preset in PRESETS)
        rows.append(f"| `preset` | text | | {names}: see [presets](#presets) |")
    hints, fields = typing.get_type_hints(config), dataclasses.fields(config)
    defaults = {field.name: field.default for field in fields if not is_hidden(config, field.name)}
    described = [(names, text) for names, text in entries(config) if names[0] in defaults]
    if sorted(defaults) != sorted(one for names, _ in described for one in names):
        raise ValueError(f"{config.__name__}: its fields are not those of its docstring.")
    for names, text in described:
        cells = [
            ", ".join(f"`{one}`" for one in names),
            unique(describe_type(hints[one]) for one in names),
            unique(describe_default(defaults[one]) for one in names),
            text.replace("|", "\\|"),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    text = f"## `[{name}]`\n\n{summary}\n\n" + "\n".join(rows) + "\n"
    return text + presets() if config is ModelConfig else text


def presets() -> str:
    columns = list(dict.fromkeys(field for sizes in PRESETS.values() for field in sizes))
    otherwise = {field.name: field.default for field in dataclasses.fields(ModelConfig)}
    rows = [f"| preset | {' | '.join(f'`{one}`' for one in columns)} |"]
    rows.append("|---|" + "--:|" * len(columns))
    for name, sizes in PRESETS.items():
        values = (str(sizes.get(column, otherwise[column])) for column in columns)
        rows.append(f"| `{name}` | {' | '.join(values)} |")
    return "\n### Presets\n\n" + "\n".join(rows) + "\n"


def entries(config: type) -> list[tuple[list[str], str]]:
    """What the docstring says under `Args`: names of fields, and what they mean."""
    _, _, arguments = inspect.cleandoc(config.__doc__).partition("\nArgs:\n")
    arguments = re.split(r"\n\S", arguments)[0]
    joined = re.sub(r"\n {8,}", " ", arguments)
    return [
        (names.split(", "), text.removesuffix("."))
        for names, text in re.findall(r"^ {4}([\w, ]+): (.*)$", joined, re.MULTILINE)
    ]


def is_hidden(config: type, name: str) -> bool:
    return config is ModelConfig and name in NOT_IN_FILES


def describe_type(hint) -> str:
    (kind, *_) = typing.get_args(hint) or (hint,)  # of `int | None`: int
    return TYPES[kind]


def describe_default(value) -> str:
    """As it would stand in the file."""
    if value is None:
        return "left out"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def unique(words) -> str:
    return ", ".join(dict.fromkeys(words))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
