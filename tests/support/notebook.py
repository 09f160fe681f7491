"""Execute docs/notebook.ipynb, as a person would from its folder: into a file, or in its place.

Run: PYTHONPATH=tests python -m support.notebook [OUT]
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

NOTEBOOK: Final = Path(__file__).parents[2] / "docs" / "notebook.ipynb"
_SECONDS: Final = 300


def main() -> None:
    """Execute each cell; the first that fails ends it with its traceback."""
    nbformat: Any = import_module("nbformat")  # untyped; who only asks for the place needs none
    from nbclient import NotebookClient  # noqa: PLC0415

    formats: Any = nbformat  # its functions have no types
    book = formats.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(NOTEBOOK.parent)}}
    NotebookClient(book, timeout=_SECONDS, kernel_name="python3", resources=place).execute()
    for cell in book.cells:
        cell.metadata.pop("execution", None)  # when it ran, which changes each time
    book.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
    }
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else NOTEBOOK
    out.write_text(formats.writes(book) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
