"""The last handler of errors: what reaches it is a bug of ours, and is reported as a bug."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Final

from tracelens import __version__

EXIT_CODE: Final = 70  # "internal software error" of sysexits.h
DEBUG: Final = "TRACELENS_DEBUG"


def report(error: BaseException) -> int:
    """Print one sentence: that this is a bug and how to report it; the traceback goes to a file.

    With TRACELENS_DEBUG=1 it goes to standard error instead.
    """
    content = "".join(traceback.format_exception(error))
    if os.environ.get(DEBUG) == "1":
        sys.stderr.write(content)
        location = "with the traceback above"
    else:
        location = _save_traceback(f"tracelens {__version__}, Python {sys.version}\n{content}")
    sys.stderr.write(
        f"tracelens: this is a bug in TraceLens, not in your trace: {type(error).__name__} "
        f"{_locate(error)}, version {__version__}; report it to the maintainers with this line, "
        f"{location}, and the trace if you may share it.\n"
    )
    return EXIT_CODE


def _save_traceback(content: str) -> str:
    """Write the traceback to a file of its own, if there is room for one; return where it is."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="tracelens-bug-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(content)
    except OSError:
        return f"with the traceback that {DEBUG}=1 prints"
    return f"with the traceback in {path}"


def _locate(error: BaseException) -> str:
    """Name the innermost line of ours that the error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own_frames = [frame for frame in frames if "tracelens" in frame.filename] or frames
    if not own_frames:
        return "at an unknown place"
    *_, package, file = Path("-", own_frames[-1].filename).parts
    return f"at {package}/{file}:{own_frames[-1].lineno}"
