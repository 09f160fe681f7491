"""The library in C++ that sees gradient buckets, compiled for the installed PyTorch.

PyTorch hands an operator that a kernel in Python sees to Python and back, which takes longer than to
record it. `_buckets.cpp` is such a kernel without Python's dispatch. It fits one build of PyTorch
only, so it is compiled once for each, for all runs to come:

    python -m tracelens_instrument.hooks.torch.compiled    # a minute; needs a C++ compiler

Without it the same is recorded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import torch

from tracelens_instrument.core.backend import NATIVE
from tracelens_instrument.core.failures import warn_once

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

__all__ = ["build", "load_library"]

_SOURCE: Final = Path(__file__).with_name("_buckets.cpp")
_MODULE: Final = "_buckets"
_FLAGS: Final = ("-std=c++20", "-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden")
_LIBRARIES: Final = ("torch_python", "torch", "torch_cpu", "c10")


class BucketsLibrary(Protocol):
    """What `_buckets.cpp` offers."""

    def configure(
        self,
        state: object,
        running: list[Any],
        engine: tuple[object, ...],
        first_issued: Callable[[], int],
        next_bucket: array[int],
        /,
    ) -> None:
        """Register the functions that decide if a bucket is recorded, and for which rank."""

    def remember(
        self,
        buffer: torch.Tensor,
        begin: Callable[..., Any],
        track: object,
        nbytes: int,
        next_seq: Callable[[], int],
        /,
    ) -> None:
        """Record the reductions of a buffer (a bucket) from now on: `begin` begins the span of one."""

    def resume(self) -> None:
        """See buckets."""

    def suspend(self) -> None:
        """See none."""


@cache
def load_library() -> BucketsLibrary | None:
    """Load the compiled library for this PyTorch; None where none was built, or C is not wanted."""
    if not NATIVE:
        return None
    try:
        library_path = _library_path()
        if not library_path.exists():
            return None
        spec = importlib.util.spec_from_file_location(_MODULE, library_path)
        if spec is None or spec.loader is None:
            return None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (OSError, ImportError, RuntimeError) as error:
        warn_once(f"what was compiled for this PyTorch cannot be used: {error}")
        return None
    return cast("BucketsLibrary", module)


def build() -> Path:
    """Compile the library for this PyTorch; return where it lies.

    Raises:
        OSError: there is no compiler, or nothing can be written.
        subprocess.CalledProcessError: it cannot be compiled; `stderr` is why.
    """
    from torch.utils import cpp_extension  # noqa: PLC0415 - it looks for compilers, and takes long

    library_path = _library_path()
    library_path.parent.mkdir(parents=True, exist_ok=True)
    temporary_path = library_path.with_name(f"{library_path.name}.{os.getpid()}")
    compiler = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")
    include_folders = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
    library_folders = cpp_extension.library_paths()
    cxx11_abi = int(torch.compiled_with_cxx11_abi())
    command = [
        *compiler,
        *_FLAGS,
        f"-D_GLIBCXX_USE_CXX11_ABI={cxx11_abi}",
        *(word for folder in include_folders for word in ("-isystem", folder)),
        str(_SOURCE),
        "-o",
        str(temporary_path),
        *(f"-L{folder}" for folder in library_folders),
        *(f"-l{name}" for name in _LIBRARIES),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        temporary_path.rename(library_path)
    finally:
        temporary_path.unlink(missing_ok=True)
    return library_path


def _library_path() -> Path:
    """Return the path of the library for this PyTorch, Python and source."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    source = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]
    build = f"torch-{torch.__version__}-{sys.implementation.cache_tag}-{source}"
    return cached / "tracelens" / "compiled" / build / f"{_MODULE}.so"


def main() -> int:
    """Build the library, and print its path; exit code 1 if it cannot be built."""
    try:
        library_path = build()
    except FileNotFoundError as error:
        reason = f"there is no compiler ({error.filename}): install g++ or set CXX"
    except OSError as error:
        reason = str(error)
    except subprocess.CalledProcessError as error:
        reason = f"the compiler failed:\n{error.stderr[-2000:]}"
    else:
        sys.stdout.write(f"Compiled for PyTorch {torch.__version__}: {library_path}\n")
        return 0
    sys.stderr.write(
        f"tracelens: gradient buckets are recorded without what is compiled, as {reason}\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
