"""What the files of an index look like: `python -m support.index_layout` writes down that of today.

It is held beside the tests, so that nobody changes what is on disk without the number of its format.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from support.runs.indexes import SLOW, explained, recorded

from tracelens.distil import places
from tracelens.lod import index
from tracelens.simulator.synthetic import Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

AGREED: Final = Path(__file__).parents[1] / "lod" / "index_layout.json"
RUNS: Final = {
    "data parallel": SLOW,
    "parameter servers": Scenario(ranks=2, steps=20, shards=2, shard_bytes=(6 << 20, 1 << 20)),
}
_WIDTH: Final = re.compile(r"-\d+(?=\.npy$)")
_OF_DATA: Final = {"evidence", "dropped", "pop"}  # their keys are what was found, not a layout


def layout() -> dict[str, Any]:
    """Return the number of the format, and of each run what its index's files hold."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            name: dict(_files(recorded(Path(folder, str(place)), scenario)))
            for place, (name, scenario) in enumerate(RUNS.items())
        }
    return {"version": places.INDEX_VERSION, "runs": runs}


def agreed() -> dict[str, Any]:
    """Return the layout that the number stands for."""
    found: dict[str, Any] = json.loads(AGREED.read_text())
    return found


def _files(trace: Path) -> Iterator[tuple[str, Any]]:
    explained(trace)
    folder = index.find(trace)
    assert folder
    for file in sorted(folder.iterdir()):
        yield _WIDTH.sub("-WIDTH", file.name), _described(file)


def _described(file: Path) -> Any:
    match file.suffix:
        case ".npy":
            array = np.load(file, mmap_mode="r")
            kind = array.dtype.descr if array.dtype.names else array.dtype.str
            return f"{kind}, {array.ndim} dimensions"
        case ".arrow":
            return {name: str(dtype) for name, dtype in pl.read_ipc_schema(file).items()}
        case ".parquet":
            return {name: str(dtype) for name, dtype in pl.read_parquet_schema(file).items()}
        case ".json":
            return _shape(json.loads(file.read_text()))
    return "?"


def _shape(value: Any) -> Any:
    """Return the keys of objects, in objects and in the first item of lists; values are all alike."""
    if isinstance(value, dict):
        return {key: "..." if key in _OF_DATA else _shape(item) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        return [_shape(value[0])]
    return "[...]" if isinstance(value, list) else "..."


def main() -> int:
    """Write the layout of today down, if its number is a new one."""
    current_layout = layout()
    if (
        AGREED.exists()
        and agreed() != current_layout
        and agreed()["version"] == places.INDEX_VERSION
    ):
        sys.stderr.write("The layout has changed: raise VERSION in the index's `index` first.\n")
        return 1
    AGREED.write_text(json.dumps(current_layout, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
