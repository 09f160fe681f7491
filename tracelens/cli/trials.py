"""Tries each file of a run in a process of its own, with limits, to find files that crash the reader.

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
from tracelens.cli.runs import raise_limits
from tracelens.schema.gate import limit
from tracelens.schema.vocabulary import SAMPLES_FOLDER, SEGMENTS_SUFFIX, TRACE_SUFFIX

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

_OPTION_BY_ATTRIBUTE: Final = {"map": "--map", "rank_of": "--rank-of", "limit": "--limit"}
_FILE_INDEX: Final = struct.Struct("=q")  # the number of the file that is being tried
_PAGE_BYTES: Final = 4096


def list_reading_options(arguments: Namespace) -> list[str]:
    """Return the options of a verb that say how it reads files, as `analyze` takes them."""
    options = ["--one-clock"] if getattr(arguments, "one_clock", False) else []
    for name, option in _OPTION_BY_ATTRIBUTE.items():
        for value in getattr(arguments, name, None) or ():
            options += [option, value]
    return options


def try_files(paths: Sequence[Path], options: Sequence[str]) -> dict[str, str]:
    """Return why files are to be left out, by absolute path; arguments as of `containment.try_files`.

    For the sizes and times that a file may take see docs/reliability.md.
    """
    from tracelens.cli import parse

    raise_limits(parse(["analyze", "FILE", *options]).limit or ())
    files = [file for path in paths for file in _list_files(path)]
    reasons: dict[str, str] = {}
    with mmap.mmap(-1, _PAGE_BYTES) as page:
        file_index = 0
        while file_index < len(files):
            _FILE_INDEX.pack_into(page, 0, file_index)
            child = os.fork()
            if child == 0:
                _try_all(files, file_index, options, page, reasons)
            _, status = os.waitpid(child, 0)
            (file_index,) = _FILE_INDEX.unpack_from(page, 0)  # the one that the child tried last
            if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
                break
            reasons[os.path.abspath(files[file_index])] = _describe_end(status)  # noqa: PTH100 - links stay
            file_index += 1
    return reasons


def _list_files(path: Path) -> list[Path]:
    """List the samples of a folder and then its other files; of a file, the file alone."""
    if not path.is_dir() or path.name.endswith(SEGMENTS_SUFFIX):
        return [path]
    return [
        *sorted((path / SAMPLES_FOLDER).glob(f"*{TRACE_SUFFIX}")),
        *sorted(entry for entry in path.iterdir() if _may_be_read(entry)),
    ]


def _may_be_read(entry: Path) -> bool:
    return entry.name[0] != "." and (entry.is_file() or entry.name.endswith(SEGMENTS_SUFFIX))


def _try_all(
    files: Sequence[Path],
    first_index: int,
    options: Sequence[str],
    page: mmap.mmap,
    reasons: dict[str, str],
) -> None:
    """Try files from `first_index` on, noting the current one in `page`, and end this process.

    `reasons` say why files were left out so far.
    """
    null_device = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null_device, descriptor)
    containment.contain()
    containment.leave_out(reasons)
    _set_limit(resource.RLIMIT_CORE, value=0)
    from tracelens.cli.runs import import_libraries

    import_libraries()
    for index in range(first_index, len(files)):
        _FILE_INDEX.pack_into(page, 0, index)
        allowed_s = limit("cpu") + _measure_size(files[index]) / containment.BYTES_A_SECOND
        _set_limit(resource.RLIMIT_CPU, int(time.process_time() + allowed_s) + 1)
        _set_limit(resource.RLIMIT_DATA, _measure_data_bytes() + limit("memory"))
        try:
            _try_file(files[index], options)
        except MemoryError:
            containment.end_out_of_memory()
        except BaseException:  # noqa: BLE001, S110 - said when the run is read
            pass
    os._exit(0)


def _try_file(file: Path, options: Sequence[str]) -> None:
    if file.parent.name == SAMPLES_FOLDER:
        from tracelens.conversion.arrow_file import read_samples

        read_samples(file)
        return
    from tracelens.cli import main

    main(["analyze", str(file), "--no-keep", *options])


def _set_limit(resource_number: int, value: int) -> None:
    """Set the soft limit of a resource of this process, as far as the hard limit lets."""
    _, hard_limit = resource.getrlimit(resource_number)
    soft_limit = value if hard_limit == resource.RLIM_INFINITY else min(value, hard_limit)
    resource.setrlimit(resource_number, (soft_limit, hard_limit))


def _measure_size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _measure_data_bytes() -> int:
    """Measure the writable address space of this process, bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    return pages * resource.getpagesize()


def _describe_end(status: int) -> str:
    """Describe how a process that read a file was ended."""
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
    question = json.load(sys.stdin)
    json.dump(try_files(list(map(Path, question["places"])), question["options"]), sys.stdout)
