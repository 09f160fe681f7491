"""How files of stack frames are named: in short, and alike on all hosts.

This module is imported while an uncaught exception is on its way. It runs no code that is made of text,
as dataclasses do: Python forgets then that Ctrl-C ended the process, and the exit code is another one.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["make_path_shortener"]


def make_path_shortener(folders: Iterable[str] | None = None) -> Callable[[str], str]:
    """Return a function that names files relative to the innermost of these folders.

    So a frame reads ``torch/nn/modules/linear.py`` rather than where this machine keeps PyTorch, reads
    the same on all hosts, and tells no user's home. A file in none of the folders is named from its
    package on, or by its name alone.

    Args:
        folders: Default: the working directory and what modules are imported from.
    """
    import_folders = [str(Path.cwd()), *sys.path] if folders is None else folders
    prefixes = {f"{Path(folder).absolute()}{os.sep}" for folder in import_folders if folder}
    longest_first = sorted(prefixes - {2 * os.sep}, key=len, reverse=True)

    @functools.cache
    def shorten(file: str) -> str:
        """Return the file relative to a prefix, or, outside of all, to what holds its package."""
        for prefix in longest_first:
            if file.startswith(prefix):
                return file[len(prefix) :]
        path = Path(file)
        if not path.is_absolute():
            return file
        non_package_folders = (
            folder for folder in path.parents if not (folder / "__init__.py").is_file()
        )
        return str(path.relative_to(next(non_package_folders, path.anchor)))

    return shorten
