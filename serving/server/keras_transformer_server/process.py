"""A server beside this process: for notebooks, demonstrations, benchmarks and tests."""

import re
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path

from keras_transformer_server.settings import SettingsError


class ServerProcess:
    """Starts a server on free ports of this machine, and waits until it is ready.

    It ends with `stop`, or with a `with` block around it, and at the latest with this process.

    Args:
        directory: of a model, with its versions.
        flags: as of `keras-transformer serve`, such as "--name", "dates".
        log: a file that its messages are added to; by default they are only told when it does not
            start.

    Attributes:
        process: the `subprocess.Popen`.
        port: of gRPC.
        rest_port: of REST; None without it.

    Raises:
        SettingsError: where it cannot start, with what it has said.
    """

    def __init__(self, directory: str | Path, *flags: str, log: str | Path | None = None):
        command = [sys.executable, "-m", "keras_transformer_server", directory]
        with open(log, "a+") if log else tempfile.TemporaryFile("w+") as messages:
            self.process = subprocess.Popen(
                [*command, "--port", "0", "--rest-port", "0", *map(str, flags)],
                stdout=subprocess.PIPE, stderr=messages, text=True,
            )  # fmt: skip
            self._end = weakref.finalize(self, _end, self.process)
            ready = self.process.stdout.readline()
            found = re.search(r"gRPC on port (\d+)(?:, REST on port (\d+))?", ready)
            if not found:
                self._end()
                messages.seek(0)
                raise SettingsError(f"The server did not start:\n{messages.read().strip()}")
        self.port = int(found[1])
        self.rest_port = found[2] and int(found[2])

    @property
    def address(self) -> str:
        """What a client is told."""
        return f"127.0.0.1:{self.port}"

    def stop(self) -> int:
        """Lets it finish what is in flight; returns its exit code."""
        self.process.terminate()
        self.process.wait()
        self._end()
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def _end(process):
    if process.poll() is None:
        process.kill()
    process.wait()
    process.stdout.close()
