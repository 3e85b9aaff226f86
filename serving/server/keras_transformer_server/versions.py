"""The models that are served: their versions come and go while requests go on."""

import asyncio
import contextlib
import dataclasses
import gc
import logging
from pathlib import Path

from tensorflow_serving.apis import get_model_status_pb2

from keras_transformer_server.errors import not_found
from keras_transformer_server.model import Model

log = logging.getLogger(__name__)

State = get_model_status_pb2.ModelVersionStatus.State
UNKNOWN = 2  # the code of an error that is none of the others


@dataclasses.dataclass
class Version:
    """A version that is, was, or was to be served."""

    state: int
    model: Model | None = None
    error: str = ""
    in_flight: int = 0
    contents: tuple = ()  # what its directory held when it was last loaded


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Which versions of a model should be served, and the names that some of them have."""

    path: Path
    latest: int = 1  # how many of the last ones; 0 for all
    specific: tuple[int, ...] = ()  # or these
    labels: dict[str, int] = dataclasses.field(default_factory=dict)

    def choose(self, found: list[int]) -> list[int]:
        if self.specific:
            return [version for version in found if version in self.specific]
        return sorted(found)[-self.latest :] if self.latest else sorted(found)


class Models:
    """All models, by name.

    A new version is loaded and warmed in a thread while the old ones serve, and only then do those
    go: each is freed when its last request is done. One that cannot be loaded is reported, and
    tried again when its files change.
    """

    def __init__(self, wanted: dict[str, Wanted], poll_seconds: float):
        self.wanted = wanted
        self.poll_seconds = poll_seconds
        self.versions: dict[str, dict[int, Version]] = {name: {} for name in wanted}
        self._seen: dict[Path, tuple] = {}
        self._looking = asyncio.Lock()

    async def watch(self) -> None:
        """Looks for changes, for ever."""
        while True:
            try:
                await self.look()
            except Exception:  # a directory that cannot be read now may be readable later
                log.exception("looking for versions failed")
            await asyncio.sleep(self.poll_seconds)

    async def look(self, at_once: bool = False) -> None:
        """Makes what is served what is wanted.

        Args:
            at_once: also takes a version whose files are new, and may still be being copied.
        """
        async with self._looking:
            for name in list(self.versions):
                await self._look(name, self.wanted.get(name), at_once)

    async def change(self, wanted: dict[str, Wanted]) -> None:
        """Wants something else, and makes it so."""
        async with self._looking:
            self.wanted = wanted
            for name in wanted:
                self.versions.setdefault(name, {})
        await self.look(at_once=True)

    def problems(self, name: str) -> list[str]:
        """Why versions of a model are not there."""
        found = [version.error for version in self.versions[name].values() if version.error]
        if not found and not self._available(name):
            return [f"{self.wanted[name].path}: no version (a directory with a number) is in it"]
        return found

    @contextlib.contextmanager
    def use(self, name: str, version: int | None = None, label: str | None = None):
        """A version that stays in memory until the block is left."""
        found = self._find(name, version, label)
        found.in_flight += 1
        try:
            yield found.model
        finally:
            found.in_flight -= 1
            self._free(found)

    def status(self, name: str, version: int | None = None, label: str | None = None):
        """The states of the versions that are asked for: (version, `Version`), latest first."""
        self._check_name(name)
        if label is not None:
            version = self._labelled(name, label)
        known = self.versions[name]
        if version is not None and version not in known:
            raise not_found(f"model_spec.version is {version}; {self._has(name)}.")
        return [
            (number, known[number])
            for number in sorted(known, reverse=True)
            if version in (None, number)
        ]

    @property
    def all_ready(self) -> bool:
        """Whether every model that is wanted has a version that serves."""
        return all(self._available(name) for name in self.wanted)

    def _find(self, name, version, label):
        self._check_name(name)
        if label is not None:
            version = self._labelled(name, label)
        available = self._available(name)
        if version is None and available:
            return available[max(available)]
        if version not in available:
            raise not_found(
                f"model_spec.version is {'not given' if version is None else version}; "
                f"{self._has(name)}."
            )
        return available[version]

    def _check_name(self, name):
        if name not in self.wanted:
            raise not_found(
                f"model_spec.name is {name!r}; this server has {', '.join(sorted(self.wanted))}."
            )

    def _labelled(self, name, label):
        labels = self.wanted[name].labels
        if label not in labels:
            known = ", ".join(sorted(labels)) or "no labels"
            raise not_found(
                f"model_spec.version_label is {label!r}; the model {name!r} has {known}."
            )
        return labels[label]

    def _available(self, name):
        return {
            number: version
            for number, version in self.versions[name].items()
            if version.state == State.AVAILABLE
        }

    def _has(self, name):
        numbers = ", ".join(map(str, sorted(self._available(name)))) or "none yet"
        return f"the versions of {name!r} that are ready: {numbers}"

    def _should_load(self, name, version, contents):
        known = self.versions[name].get(version)
        if known is None:
            return True
        return known.state == State.END and (not known.error or known.contents != contents)

    async def _look(self, name, wanted, at_once):
        found = await asyncio.to_thread(_contents, wanted.path) if wanted else {}
        chosen = wanted.choose(list(found)) if wanted else []
        for version in chosen:
            await self._consider(name, wanted.path / str(version), found[version], at_once)
        # Rather an old version than none.
        for version in sorted(found.keys() - set(chosen), reverse=True):
            if not wanted.specific and not self._available(name):
                await self._consider(name, wanted.path / str(version), found[version], at_once)
        self._retire(name, set(chosen), gone=wanted is None)

    async def _consider(self, name, path, contents, at_once):
        """Loads a version if it is new and complete."""
        # A copy that is under way looks different each time.
        is_still = at_once or self._seen.get(path) == contents
        self._seen[path] = contents
        if is_still and self._should_load(name, int(path.name), contents):
            await self._load(name, path, int(path.name), contents)

    async def _load(self, name, path, version, contents):
        log.info("loading %s, version %d", name, version)
        entry = self.versions[name][version] = Version(State.LOADING, contents=contents)
        try:
            entry.model = await asyncio.to_thread(_load, path, version)
        except Exception as error:
            log.error("%s, version %d cannot be loaded: %s", name, version, error)
            entry.state = State.END
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            entry.error = f"{path}: it cannot be loaded: {reason[:200]}"
        else:
            entry.state = State.AVAILABLE
            log.info("%s, version %d is ready", name, version)

    def _retire(self, name, chosen, gone):
        """Stops what is no longer wanted, unless that would leave nothing."""
        available = self._available(name)
        if not gone and not chosen & available.keys():
            return
        for number, version in available.items():
            if number not in chosen:
                log.info("%s, version %d is not wanted any more", name, number)
                version.state = State.UNLOADING
                self._free(version)

    def _free(self, version):
        if version.state == State.UNLOADING and not version.in_flight:
            version.state, version.model = State.END, None
            # A model refers to itself. Later, as whoever used it last still holds it.
            loop = asyncio.get_running_loop()
            loop.call_later(0.1, lambda: loop.run_in_executor(None, gc.collect))


def _load(path, version):
    model = Model(path, version)
    model.warm_up(path)
    return model


def _contents(path):
    """The versions in a model's directory, each with the names, sizes and times of its files."""
    if not path.is_dir():
        return {}
    return {
        int(directory.name): tuple(
            (str(file), file.stat().st_size, file.stat().st_mtime_ns)
            for file in sorted(directory.rglob("*"))
            if file.is_file()
        )
        for directory in path.iterdir()
        if directory.is_dir() and _is_version(directory.name)
    }


def _is_version(name):
    return name.isdecimal() and name == str(int(name)) and int(name) < 2**63
