"""Starts a server: python -m keras_transformer_server DIR."""

import argparse
import logging
import sys

from keras_transformer_server.settings import SettingsError, add_flags, read_settings


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 when the server was stopped, or 2 when it could not start."""
    parser = argparse.ArgumentParser("keras-transformer serve")
    add_flags(parser)
    return run(parser.parse_args(arguments))


def run(parsed: argparse.Namespace) -> int:
    """Serves as the flags say."""
    given = dict(vars(parsed))
    path = given.pop("settings")
    given.pop("run", None)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        settings = read_settings(path, given)
        # Only now, for it takes seconds: a wrong flag is told at once.
        from keras_transformer_server.server import serve

        serve(settings)
    except SettingsError as error:
        print(f"keras-transformer serve: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
