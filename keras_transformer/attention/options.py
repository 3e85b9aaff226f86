"""Checks of the options that a head spec gives."""


def check_positive(name, value, kinds=int):
    """The value of an option that has to be a positive number, by default a whole one."""
    if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
        whole = " whole" if kinds is int else ""
        raise ValueError(f"{name}={value!r} has to be a positive{whole} number.")
    return value


def check_count(name, value):
    """The value of an option that has to be a whole number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}={value!r} has to be a whole number, 0 or more.")
    return value


def check_share(name, value):
    """The value of an option that has to be a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{name}={value!r} has to be a number from 0 to 1.")
    return value


def check_flag(name, value):
    """The value of an option that has to be True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} has to be True or False.")
    return value


def choose(table, what, name):
    """The row of a table; a name that it has not is refused."""
    if not isinstance(name, str) or name not in table:
        raise ValueError(f"{what}={name!r} is not known: choose {', '.join(map(repr, table))}.")
    return table[name]
