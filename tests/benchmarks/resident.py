"""How much memory a process has."""

from __future__ import annotations

from pathlib import Path

__all__ = ["memory_of", "resident"]


def resident(process: int | str = "self") -> tuple[int, int]:
    """Return a process's own bytes, and those of mapped files, which the system may take back."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    kib = {line.split()[0]: int(line.split()[1]) for line in lines if line.startswith("Rss")}
    return kib["RssAnon:"] << 10, kib["RssFile:"] << 10


def memory_of(process: int | str = "self") -> str:
    """Say it in words."""
    own, mapped = resident(process)
    return f"{own >> 20} MiB, and {mapped >> 20} MiB of mapped files"
