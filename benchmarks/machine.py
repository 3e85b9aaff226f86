"""What a measurement was made on."""

import os
from importlib import metadata
from pathlib import Path


def machine(*packages: str) -> str:
    """The processor, its cores and the versions of packages, as a line below a table."""
    (name, *_) = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    versions = ", ".join(f"{package} {metadata.version(package)}" for package in packages)
    return f"{name}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores; {versions}."
