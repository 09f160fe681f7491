"""Tries each file of a run in a process of its own, with limits: which would end whoever reads them?

A file is explained alone, as `tracelens analyze FILE` does. One process tries them one after the other,
and when it is ended, another one goes on with the next: a trial costs what reading costs.

As a program it is asked on standard input, and answers on standard output, in JSON (`containment.py`).
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelens import containment
from tracelens.cli.opening import raise_limits
from tracelens.schema.gate import limit
from tracelens.schema.vocabulary import SAMPLES_FOLDER, SEGMENTS_SUFFIX, TRACE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["named_signal", "options_of", "tried"]

_OPTIONS: Final = {"map": "--map", "rank_of": "--rank-of", "limit": "--limit"}
_AT: Final = struct.Struct("=q")  # the number of the file that is being tried
_PAGE: Final = 4096


def options_of(given: Sequence[str]) -> list[str]:
    """Return how a verb reads files, as options of `analyze`."""
    from tracelens.cli import build_parser

    arguments = build_parser(given[:1]).parse_args(given)
    found = ["--one-clock"] if getattr(arguments, "one_clock", False) else []
    for name, option in _OPTIONS.items():
        for value in getattr(arguments, name, None) or ():
            found += [option, value]
    return found


def tried(places: Sequence[Path], options: Sequence[str]) -> dict[str, str]:
    """Return why files are to be left out, by absolute path; arguments as of `containment.tried`.

    Of the sizes and times that one may take, see docs/reliability.md.
    """
    from tracelens.cli import build_parser

    # Some name of a file, which each of them takes the place of.
    arguments = build_parser(("analyze",)).parse_args(["analyze", "FILE", "--no-keep", *options])
    raise_limits(arguments.limit or ())
    files = [file for place in places for file in _files_of(place)]
    found: dict[str, str] = {}
    with mmap.mmap(-1, _PAGE) as page:
        at = 0
        while at < len(files):
            _AT.pack_into(page, 0, at)
            child = os.fork()
            if child == 0:
                _try_all(files, at, options, page, found)
            _, status = os.waitpid(child, 0)
            (at,) = _AT.unpack_from(page, 0)
            if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
                break
            found[os.path.abspath(files[at])] = _reason(status)  # noqa: PTH100 - links stay
            at += 1
    return found


def _files_of(place: Path) -> list[Path]:
    """Return samples, and then whatever in a folder may be of a process; of a file that alone."""
    if not place.is_dir() or place.name.endswith(SEGMENTS_SUFFIX):
        return [place]
    return [
        *sorted((place / SAMPLES_FOLDER).glob(f"*{TRACE_SUFFIX}")),
        *sorted(entry for entry in place.iterdir() if _may_be_read(entry)),
    ]


def _may_be_read(entry: Path) -> bool:
    return entry.name[0] != "." and (entry.is_file() or entry.name.endswith(SEGMENTS_SUFFIX))


def _try_all(
    files: Sequence[Path], at: int, options: Sequence[str], page: mmap.mmap, found: dict[str, str]
) -> None:
    """Try files from one on, and end this process; what is found of files is nothing to it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    containment.contain()
    containment.leave_out(found)
    _limit(resource.RLIMIT_CORE, 0)
    from tracelens.cli.opening import import_libraries

    import_libraries()
    for number in range(at, len(files)):
        _AT.pack_into(page, 0, number)
        allowed = limit("cpu") + _size(files[number]) / containment.BYTES_A_SECOND
        _limit(resource.RLIMIT_CPU, int(time.process_time() + allowed) + 1)
        _limit(resource.RLIMIT_DATA, _taken() + limit("memory"))
        try:
            _try(files[number], options)
        except MemoryError:
            containment.out_of_memory()
        except BaseException:  # noqa: BLE001, S110 - said when the run is read
            pass
    os._exit(0)


def _try(file: Path, options: Sequence[str]) -> None:
    if file.parent.name == SAMPLES_FOLDER:
        from tracelens.conversion.arrow_file import read_samples

        read_samples(file)
        return
    from tracelens.cli import main

    main(["analyze", str(file), "--no-keep", *options])


def _limit(which: int, value: int) -> None:
    _, most = resource.getrlimit(which)
    soft = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(which, (soft, most))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _taken() -> int:
    """Return how many bytes of addresses this process may write to."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    return pages * resource.getpagesize()


def _reason(status: int) -> str:
    """Return how a process that read a file was ended."""
    if os.WIFEXITED(status):
        if os.WEXITSTATUS(status) == containment.OUT_OF_MEMORY:
            return (
                f"reading it takes more than the limit of {limit('memory')} bytes of memory ('--limit "
                "memory=...' raises it)"
            )
        return f"reading it ended the process with status {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    if number == signal.SIGXCPU:
        return (
            f"reading it takes more than the limit of {limit('cpu')} seconds of CPU ('--limit cpu=...' "
            "raises it)"
        )
    return f"reading it ended the process by {named_signal(number)}"


def named_signal(number: int) -> str:
    """Return a signal as people know it: by number and name."""
    return f"signal {number} ({signal.Signals(number).name})"


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    json.dump(tried(list(map(Path, asked["places"])), asked["options"]), sys.stdout)
