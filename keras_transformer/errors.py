"""What goes wrong because of what was given, not because of the code."""


class InputError(ValueError):
    """A file, a config or an argument cannot be used; the message says which, why and how to go on.

    The command line prints the message alone and exits with 2. Anything else is a bug and keeps
    its traceback.
    """
