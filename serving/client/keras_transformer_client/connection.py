"""How to reach a server: address, TLS, token, and how long to try."""

import dataclasses
import ipaddress
import random
from collections.abc import Iterator
from pathlib import Path

import grpc


class CallError(Exception):
    """What a server answered instead of a result, or that none answered.

    Attributes:
        code: the `grpc.StatusCode`.
    """

    def __init__(self, code: grpc.StatusCode, message: str):
        super().__init__(f"{code.name}: {message}")
        self.code = code


@dataclasses.dataclass(frozen=True)
class Connection:
    """Where the server is and how to speak with it; see `Client`."""

    address: str
    timeout: float = 30.0
    tls: bool = False
    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    max_message_mb: int = 64

    def __post_init__(self):
        if not self.tls and (self.ca or self.certificate or self.key):
            raise ValueError("ca, certificate and key are for TLS: give tls=True as well.")
        if bool(self.certificate) != bool(self.key):
            raise ValueError("certificate and key belong together: give both.")
        if self.token and not self.tls and not _is_local(self.address):
            raise ValueError(
                f"The token would travel to {self.address} for all to read: give tls=True."
            )

    @property
    def metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self.token}")] if self.token else []

    def open(self, library):
        """A channel of `grpc` or of `grpc.aio`."""
        size = self.max_message_mb * 2**20
        options = [
            ("grpc.max_send_message_length", size),
            ("grpc.max_receive_message_length", size),
            # A server that was away is found again soon after it is back.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        if not self.tls:
            return library.insecure_channel(self.address, options)
        read = [path and Path(path).read_bytes() for path in (self.ca, self.key, self.certificate)]
        return library.secure_channel(self.address, grpc.ssl_channel_credentials(*read), options)


def pauses() -> Iterator[float]:
    """Seconds to wait before trying again: twice as long each time, and never two clients alike."""
    longest = 0.1
    while True:
        yield random.uniform(0.5, 1.0) * longest
        longest = min(2 * longest, 3.0)


def _is_local(address):
    host = address.removeprefix("ipv4:").removeprefix("ipv6:").rsplit(":", 1)[0].strip("[]")
    if address.startswith("unix:") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
