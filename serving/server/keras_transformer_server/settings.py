"""How a server is to run: from flags, or from a TOML file."""

import dataclasses
import tomllib
import types
import typing
from pathlib import Path


class SettingsError(Exception):
    """A setting that cannot be; the message says which and what would do."""


def _setting(default, help, metavar=None):
    return dataclasses.field(default=default, metadata={"help": help, "metavar": metavar})


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that can be set. Flags have the same names, with dashes."""

    directory: str = dataclasses.field(metadata={})
    name: str = _setting("default", "what clients call the model")
    host: str = _setting("127.0.0.1", "the address to listen on; 0.0.0.0 for all")
    port: int = _setting(8500, "for gRPC; 0 for a free one")
    rest_port: int = _setting(8501, "for REST and metrics; 0 for a free one, -1 for none")
    replicas: int = _setting(0, "executions side by side; 0 for one a core")
    max_batch_size: int = _setting(64, "rows in an execution; 1 for no batching")
    batch_timeout_ms: float = _setting(2.0, "how long a row waits for others like it")
    max_waiting_rows: int = _setting(1024, "more are refused")
    max_streams: int = _setting(64, "translations that are streamed at a time")
    max_request_rows: int = _setting(1024, "rows in a request")
    max_text_bytes: int = _setting(20_000, "of one text")
    max_message_mb: int = _setting(16, "of a request or response")
    poll_seconds: float = _setting(2.0, "how often to look for new versions")
    grace_seconds: float = _setting(30.0, "for what is in flight when the server is told to stop")
    reload_root: str | None = _setting(
        None, "clients may have models from this directory loaded", "DIR"
    )
    certificate: str | None = _setting(None, "speak TLS with this certificate", "FILE")
    key: str | None = _setting(None, "of the certificate", "FILE")
    client_ca: str | None = _setting(
        None, "let in only clients whose certificate these have signed (mutual TLS)", "FILE"
    )
    token_file: str | None = _setting(
        None, "let in only clients that send one of the tokens in this file, one a line", "FILE"
    )

    def __post_init__(self):
        kinds = typing.get_type_hints(Settings)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not _fits(value, kinds[field.name]):
                raise SettingsError(
                    f"{field.name} is {value!r}; expected {_describe(kinds[field.name])}."
                )
        at_least = dict(
            port=0, rest_port=-1, replicas=0, max_batch_size=1, batch_timeout_ms=0, max_streams=0,
            max_waiting_rows=1, max_request_rows=1, max_text_bytes=1, max_message_mb=1,
            poll_seconds=0.01, grace_seconds=0,
        )  # fmt: skip
        for name, least in at_least.items():
            if not getattr(self, name) >= least:
                raise SettingsError(f"{name} is {getattr(self, name)}; expected {least} or more.")
        at_most = dict(port=65535, rest_port=65535, max_message_mb=2047)
        for name, most in at_most.items():
            if getattr(self, name) > most:
                raise SettingsError(f"{name} is {getattr(self, name)}; expected {most} or less.")
        if bool(self.certificate) != bool(self.key):
            raise SettingsError("certificate and key belong together: give both.")
        if self.client_ca and not self.certificate:
            raise SettingsError("client_ca needs TLS: give certificate and key as well.")


def read_settings(path: str | Path | None, given: dict) -> Settings:
    """The settings of a TOML file, if there is one, and what flags say over those."""
    table = {}
    if path is not None:
        try:
            table = tomllib.loads(Path(path).read_text("utf-8"))
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror}.") from None
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SettingsError(f"{path}: not valid TOML: {error}.") from None
    known = {field.name for field in dataclasses.fields(Settings)}
    for name in table:
        if name not in known:
            raise SettingsError(
                f"{path}: unknown key {name}. Known are {', '.join(sorted(known))}."
            )
    table |= {name: value for name, value in given.items() if value is not None}
    if "directory" not in table:
        raise SettingsError("No model: give the directory of an exported one.")
    return Settings(**table)


def add_flags(parser) -> None:
    """A flag for each setting; those that are not given are None."""
    kinds = typing.get_type_hints(Settings)
    parser.add_argument("directory", nargs="?", metavar="DIR", help="of an exported model")
    parser.add_argument("--settings", metavar="FILE.toml", help="has settings by their names")
    for field in dataclasses.fields(Settings)[1:]:
        kind = kinds[field.name]
        kind = kind if isinstance(kind, type) else str
        default = "" if field.default is None else f" (default: {field.default})"
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=kind,
            metavar=field.metadata["metavar"] or field.name.upper(),
            help=field.metadata["help"] + default,
        )


def _fits(value, kind):
    if isinstance(kind, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(kind))
    return type(value) in ((int, float) if kind is float else (kind,))


def _describe(kind):
    kind = typing.get_args(kind)[0] if isinstance(kind, types.UnionType) else kind
    return {int: "a whole number", float: "a number", str: "text"}[kind]
