"""Checks of the options that a head spec gives."""


def check_positive(name, value, kinds=int):
    """The value of an option that has to be a positive number, by default a whole one."""
    if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
        whole = " whole" if kinds is int else ""
        raise ValueError(f"{name}={value!r} has to be a positive{whole} number.")
    return value


def choose(table, what, name):
    """The row of a table; a name that it has not is refused."""
    if name not in table:
        raise ValueError(f"{what}={name!r} is not known: choose {', '.join(map(repr, table))}.")
    return table[name]
