"""The command line: translate | metadata | health."""

import argparse
import os
import sys
from itertools import islice
from pathlib import Path

from keras_transformer_client import CallError, Client

LINES_AT_ONCE = 64  # in a request


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns 0, 1 when the server could not do it, or 2 for a wrong command."""
    parsed = _parser().parse_args(arguments)
    try:
        token = _token(parsed)
        with Client(
            parsed.address,
            parsed.model,
            parsed.version,
            timeout=parsed.timeout,
            tls=parsed.tls or bool(parsed.ca),
            ca=parsed.ca,
            certificate=parsed.certificate,
            key=parsed.key,
            token=token,
        ) as client:
            return parsed.run(client, parsed)
    except (ValueError, OSError) as error:
        print(f"keras-transformer-client: {error}", file=sys.stderr)
        return 2
    except CallError as error:
        print(f"keras-transformer-client: {parsed.address}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser():
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--address", default="localhost:8500", help="default: %(default)s")
    common.add_argument("--model", default="default", help="its name (default: %(default)s)")
    common.add_argument("--version", type=int, help="default: the latest")
    common.add_argument("--timeout", type=float, default=30.0, help="seconds (default: 30)")
    common.add_argument("--tls", action="store_true", help="speak TLS")
    common.add_argument("--ca", metavar="FILE", help="trust these certificates; implies --tls")
    common.add_argument("--certificate", metavar="FILE", help="this client's own, for mutual TLS")
    common.add_argument("--key", metavar="FILE", help="of that certificate")
    common.add_argument(
        "--token-file", metavar="FILE",
        help="holds the bearer token; or set KERAS_TRANSFORMER_TOKEN",
    )  # fmt: skip
    parser = argparse.ArgumentParser("keras-transformer-client", description="Asks a server.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("translate", parents=[common], help="translate text")
    command.add_argument("text", nargs="*", help="sentences; lines of standard input by default")
    command.add_argument("--stream", action="store_true", help="show words as they are decoded")
    command.add_argument("--greedy", action="store_true", help="no beams")
    command.set_defaults(run=_translate)

    command = commands.add_parser("metadata", parents=[common], help="what the model can be asked")
    command.set_defaults(run=_metadata)

    command = commands.add_parser("health", parents=[common], help="exit with 0 if it serves")
    command.set_defaults(run=_health)
    return parser


def _token(parsed):
    # Not on the command line, where every process can read it.
    if parsed.token_file:
        return Path(parsed.token_file).read_text("utf-8").strip()
    return os.environ.get("KERAS_TRANSFORMER_TOKEN")


def _translate(client, parsed):
    lines = iter(parsed.text or (line.rstrip("\n") for line in sys.stdin))
    if not parsed.stream:
        while some := list(islice(lines, LINES_AT_ONCE)):
            print(*client.translate(some, greedy=parsed.greedy), sep="\n", flush=True)
        return 0
    for line in lines:
        shown = ""
        for token in client.stream(line):
            if not token.text.startswith(shown):  # what comes later can change how it is spelled
                print("\r", end="")
                shown = ""
            print(token.text[len(shown) :], end="", flush=True)
            shown = token.text
        print()
    return 0


def _metadata(client, parsed):
    for name, signature in sorted(client.metadata().items()):
        print(name)
        for side in ("inputs", "outputs"):
            for key, info in sorted(signature[side].items()):
                shape = "" if info.shape is None else [size or "any" for size in info.shape]
                print(f"  {side.removesuffix('s')} {key}: {info.dtype} {shape}")
    return 0


def _health(client, parsed):
    healthy = client.healthy()
    print("serving" if healthy else "not serving")
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
