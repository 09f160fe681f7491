"""Sampled stacks as speedscope's JSON, a profile a thread; www.speedscope.app opens it.

Only runs that were recorded with `--sample` have any. Weights are nanoseconds: a sample counts for as
long as its stack was seen. Source: https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tracelens.align.selection import find_begin
from tracelens.errors import InvalidArgument
from tracelens.exports.content import Saved
from tracelens.exports.output import open_new_file, size_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import polars as pl

    from tracelens.exports.content import Content

SUFFIX: Final = ".speedscope.json"
OPEN_WITH: Final = "https://www.speedscope.app (it stays in the browser), or speedscope {place}"
_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
_NONE: Final = "Events are left out: speedscope shows stacks."


def save(content: Content, target: Path) -> Saved:
    """Write the stacks of main processes, and of the children sampled with them.

    Raises:
        InvalidArgument: there is something at `target`, it cannot be written, or there are no samples.
    """
    frame_indices: dict[str, int] = {}
    profiles = list(_make_profiles(content, frame_indices))
    if not profiles:
        raise InvalidArgument(
            "There are no sampled stacks in what is chosen, and speedscope shows nothing else: record "
            "with 'tracelens record --sample'."
        )
    frame_entries = [
        {"name": name} | _parse_place(text)
        for text in frame_indices
        for name in (_parse_function(text),)
    ]
    document = {
        "$schema": _SCHEMA,
        "exporter": "TraceLens",
        "name": content.name,
        "activeProfileIndex": 0,
        "shared": {"frames": frame_entries},
        "profiles": profiles,
    }
    with open_new_file(target) as draft, draft.open("w", encoding="utf-8") as file:
        json.dump(document, file, separators=(",", ":"))
    sample_count = sum(len(profile["samples"]) for profile in profiles)
    return Saved(sample_count, size_of(target), notes=(_NONE,))


def _make_profiles(content: Content, frame_indices: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield a profile per sampled thread; `frame_indices` numbers all frames, and grows."""
    origin_ns = find_begin(content.trace)
    for owner in content.processes.filter("main").iter_rows(named=True):
        rank = f"{'PS' if owner['role'] == 'ps' else 'rank'} {owner['rank']}"
        samples = content.read_samples(owner["process"]).sort("start_ns")
        for (pid, thread), rows in samples.group_by("pid", "thread_name", maintain_order=True):
            child = "" if pid == owner["pid"] else f", process {pid}"
            yield _make_profile(f"{rank}: {thread}{child}", rows, frame_indices, origin_ns)


def _make_profile(
    name: str, samples: pl.DataFrame, frame_indices: dict[str, int], origin_ns: int
) -> dict[str, Any]:
    """Return one thread's profile; between samples that do not touch is an empty stack."""
    stacks: list[list[int]] = []
    weights_ns: list[int] = []
    first_ns = until_ns = samples["start_ns"][0]
    for start_ns, end_ns, stack in samples.select("start_ns", "end_ns", "frames").iter_rows():
        if start_ns > until_ns:
            stacks.append([])
            weights_ns.append(start_ns - until_ns)
        begin_ns = max(start_ns, until_ns)
        stacks.append([frame_indices.setdefault(frame, len(frame_indices)) for frame in stack])
        weights_ns.append(max(end_ns - begin_ns, 0))
        until_ns = max(until_ns, end_ns)
    return {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds",
        "startValue": first_ns - origin_ns,
        "endValue": until_ns - origin_ns,
        "samples": stacks,
        "weights": weights_ns,
    }


def _parse_function(text: str) -> str:
    """Return the function of ``function (file:line)``."""
    return text.rpartition(" (")[0] or text


def _parse_place(text: str) -> dict[str, Any]:
    """Return the file and the line of a frame, where it names them."""
    _, _, place = text.removesuffix(")").rpartition(" (")
    file, _, line = place.rpartition(":")
    return {"file": file, "line": int(line)} if file and line.isascii() and line.isdigit() else {}
