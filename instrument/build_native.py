"""Build hook: compile what is in C, if that can be done; without it what is in Python serves."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RECORDER = Path("instrument", "tracelens_instrument", "_native.c")
RECORDER_PARTS = RECORDER.with_name("native")
SWEEP = Path("tracelens", "accounting", "_sweep.c")
SOURCES = {RECORDER: "tracelens_instrument", SWEEP: "tracelens/accounting"}  # where in a wheel
FLAGS = (
    "-std=gnu11",
    "-O2",
    "-g0",
    "-fno-plt",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
)
_OLDEST_GLIBC = 17  # 2.17, which pip calls manylinux2014: Python 3.11 needs no less


class NativeBuildHook(BuildHookInterface[Any]):
    """Puts libraries beside their sources for an editable install, otherwise into the wheel only."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell the wheel what it has become by that."""
        if version == "editable":
            for source in SOURCES:
                compiled(Path(self.root) / source, library_of(Path(self.root) / source))
            return
        self._folder = tempfile.TemporaryDirectory()
        contents = b""
        for source, package in SOURCES.items():
            library = Path(self._folder.name) / library_of(source).name
            if compiled(Path(self.root) / source, library):
                build_data["force_include"][str(library)] = f"{package}/{library.name}"
                contents += library.read_bytes()
        if contents:
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{_platform(contents)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the wheel holds by now."""
        del build_data, artifact_path
        if version != "editable":
            self._folder.cleanup()


def library_of(source: Path) -> Path:
    """Return what a source is compiled to beside it."""
    return source.with_name(f"{source.stem}.abi3.so")


def compiled(source: Path, library: Path) -> bool:
    """Compile `source` to `library`, and say whether that worked; if not, there is no library."""
    library.unlink(missing_ok=True)
    obstacle = _obstacle() or _compile(source, library)
    if obstacle:
        sys.stderr.write(
            f"TraceLens: what {source.name} does will be done in Python, as {obstacle}\n"
        )
    return not obstacle


def _obstacle() -> str:
    if sys.platform != "linux" or platform.python_implementation() != "CPython":
        return "it is for CPython on Linux"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "it relies on the GIL, which this Python lacks"
    return ""


def _compile(source: Path, library: Path) -> str:
    """Return what went wrong."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    flags = [*FLAGS, *shlex.split(os.environ.get("CFLAGS", ""))]
    include = f"-I{sysconfig.get_path('include')}"
    try:
        done = subprocess.run(
            [*compiler, *flags, include, str(source), "-o", str(library)],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return f"there is no compiler ({error})"
    if done.returncode != 0:
        library.unlink(missing_ok=True)
        return f"{compiler[0]} could not compile {source.name}:\n{done.stderr.strip()[-2000:]}"
    return ""


def _platform(library: bytes) -> str:
    """Name the oldest Linux that runs `library`: PEP 600 goes by what is needed of the C library."""
    here = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    needed = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library)]
    if not needed or b"GLIBC_ABI_" in library:
        return here  # another C library, or a linker whose output older ones refuse
    return here.replace("linux_", f"manylinux_2_{max(_OLDEST_GLIBC, *needed)}_", 1)
