"""What is wrong with a field, and what it might have been."""

import difflib

from keras_transformer.errors import InputError


class FieldError(InputError):
    """A field of a config has a value that it cannot have."""

    def __init__(self, config, name, problem):
        self.table = type(config).__name__.removesuffix("Config").lower()
        self.field = name
        super().__init__(f"{self.table}.{name}{problem}")


def suggest(name, known, otherwise="Known"):
    """The one of the known names that was probably meant, or all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"Did you mean {near[0]}?" if near else f"{otherwise}: {', '.join(known)}."


def check(config, name, expected, holds):
    """Refuses a field whose value does not hold."""
    value = getattr(config, name)
    if not holds(value):
        raise FieldError(config, name, f" is {value!r}; expected {expected}.")


def check_reading(config, name, read):
    """Refuses a field that `read` cannot read, with its reason."""
    try:
        read(getattr(config, name))
    except ValueError as error:
        raise FieldError(config, name, f": {error}") from None


def check_choice(config, name, choices):
    """Refuses a field that is none of the choices, and offers the near ones."""
    value = getattr(config, name)
    if value not in choices:
        near = suggest(str(value), choices, otherwise="Choose")
        raise FieldError(config, name, f" is {value!r}. {near}")
