"""Configs as TOML files: read with overrides, every mistake named with its place; written."""

import dataclasses
import re
import tomllib
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from keras_transformer.config import (
    PRESETS,
    DataConfig,
    DecodingConfig,
    FieldError,
    MethodsConfig,
    ModelConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
    suggest,
)
from keras_transformer.errors import InputError

TABLES = {
    "tokenizer": TokenizerConfig,
    "model": ModelConfig,
    "data": DataConfig,
    "training": TrainingConfig,
    "methods": MethodsConfig,
    "decoding": DecodingConfig,
}
# The tokenizer says how large the vocabulary is, so [model] does not.
NOT_IN_FILES = ("vocabulary_size", "target_vocabulary_size")


def read_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads a TOML file, then overrides such as "training.epochs=20".

    The table [model] may name a preset.
    """
    try:
        text = Path(path).read_text("utf-8")
        tables = tomllib.loads(text)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such config file.") from None
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise InputError(f"{path}: not a text file in UTF-8 ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}.") from None
    overridden = dict(_override(tables, override) for override in overrides)
    _replace_files(tables.get("data"), overridden)

    def place(table: str, key: str | None = None) -> str:
        return overridden.get((table, key)) or _place_in_file(path, text, table, key)

    return read_tables(tables, place)


def read_tables(tables: dict[str, Any], place: Callable[..., str] | None = None) -> RunConfig:
    """The config that tables of plain values describe.

    Args:
        tables: what a TOML file holds.
        place: called with a table's name and perhaps a key's; says where that stands.
    """
    place = place or (lambda *_: "config")
    for name, table in tables.items():
        if name not in TABLES:
            raise InputError(f"{place(name)}: unknown table [{name}]. {suggest(name, TABLES)}")
        if not isinstance(table, dict):
            raise InputError(f"{place(name)}: {name} is a table: write [{name}] on its own line.")
    tables = {name: dict(tables.get(name, {})) for name in TABLES}
    preset = tables["model"].pop("preset", None)
    if preset is not None:
        if not isinstance(preset, str) or preset not in PRESETS:
            raise InputError(
                f"{place('model', 'preset')}: model.preset is {preset!r}: "
                f"choose {', '.join(PRESETS)}."
            )
        tables["model"] = PRESETS[preset] | tables["model"]
    for name, table in tables.items():
        _check_types(name, table, place)
    try:
        tokenizer = TokenizerConfig(**tables.pop("tokenizer"))
        tables["model"]["vocabulary_size"] = tokenizer.vocabulary_size
        parts = {name: TABLES[name](**table) for name, table in tables.items()}
        return RunConfig(tokenizer=tokenizer, **parts)
    except FieldError as error:
        raise InputError(f"{place(error.table, error.field)}: {error}") from None


def to_tables(config: RunConfig) -> dict[str, dict[str, Any]]:
    """The tables that `read_tables` reads; TOML has no null, so what is None is left out."""
    return {
        name: {
            key: value
            for key, value in table.items()
            if value is not None and not (name == "model" and key in NOT_IN_FILES)
        }
        for name, table in dataclasses.asdict(config).items()
    }


def write_config(config: RunConfig, path: str | Path) -> None:
    """Writes what `read_config` reads."""
    Path(path).write_text(tomli_w.dumps(to_tables(config)), "utf-8")


def _check_types(name, table, place):
    types_of = typing.get_type_hints(TABLES[name])
    for key, value in table.items():
        if name == "model" and key in NOT_IN_FILES:
            raise InputError(
                f"{place(name, key)}: model.{key} is the tokenizer's to say: "
                "set tokenizer.vocabulary_size."
            )
        if key not in types_of:
            known = [key for key in types_of if name != "model" or key not in NOT_IN_FILES]
            raise InputError(f"{place(name, key)}: unknown key {name}.{key}. {suggest(key, known)}")
        if not _fits(value, types_of[key]):
            raise InputError(
                f"{place(name, key)}: {name}.{key} is {value!r}; "
                f"expected {_describe(types_of[key])}."
            )


def _override(tables, text):
    """Puts `table.key=value` into the tables; returns what it sets, and what to call it."""
    key, equals, value = text.partition("=")
    table, dot, field = key.strip().partition(".")
    if not (equals and dot and field):
        raise InputError(f"override {text!r}: expected table.key=value, as in training.epochs=20.")
    try:
        value = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        value = value.strip()  # a plain string, as in model.preset=tiny
    if not isinstance(tables.setdefault(table, {}), dict):
        raise InputError(f"override {text!r}: {table} is not a table in the config file.")
    if table not in TABLES:
        raise InputError(f"override {text!r}: unknown table {table}. {suggest(table, TABLES)}")
    tables[table][field] = value
    return (table, field), f"override {text!r}"


def _replace_files(data, overridden):
    """One TSV file, as an override, stands for the file's two; two files stand for its one."""
    for split in ("train", "validation"):
        one, two = [split], [f"{split}_source", f"{split}_target"]
        for given, instead in ((one, two), (two, one)):
            if any(("data", name) in overridden for name in given):
                for name in instead:
                    if ("data", name) not in overridden:
                        data.pop(name, None)


def _place_in_file(path, text, table, key):
    """The file, and the line where a table begins or a key of it is set, if that can be found."""
    current = None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([\w-]+)\s*\]", line):
            current = header[1]
        here = re.match(rf"\s*{re.escape(key)}\s*=", line) if key else header
        if current == table and here:
            return f"{path}, line {number}"
    return str(path)


def _fits(value, expected):
    if isinstance(expected, types.UnionType):
        return any(_fits(value, kind) for kind in typing.get_args(expected))
    if expected is float:
        return type(value) in (int, float)
    return type(value) is expected


def _describe(expected):
    if isinstance(expected, types.UnionType):
        expected = typing.get_args(expected)[0]
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[expected]
