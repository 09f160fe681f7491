"""The arms of the benchmark: each measures a kind of run and judges the bounds that are about it."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.published import table
from benchmarks.scaling.bounds import Bound, Section, write_spread
from benchmarks.scaling.cost import GIB
from benchmarks.scaling.executors import maps_of
from benchmarks.scaling.rounds import Bench, Rounds, supports
from benchmarks.scaling.runs import Size, written_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.scaling.cost import Cost

__all__ = ["hundred_million", "many_files", "small_run", "whole_report"]

MEMORY: Final = "1GiB"
MOST_OPEN: Final = 64
_MEGABYTE: Final = 1e6
_OF_FILES: Final = 4.95
_TEN_SECONDS: Final = "10 s where the floor takes 2.02 s, as when the bound was set"
# Where imports took 0.79 s, the version for which the bounds were set took 2.1 times its seconds then.
_IMPORTS_S: Final = 0.375
_SMALL_ROUNDS: Final = 11
_BILLION: Final = 1e9
_WORKERS: Final = (1, 4, 16, 64, 256)  # for whom the arithmetic is shown
_COSTS: Final = ("command", "CPU s", "wall s", "peak GiB", "files open at once")


def whole_report(bench: Bench) -> Section:
    """Measure the report of 17 million events of 512 ranks, `info`, and the second verb."""
    size = bench.size("512x1000", "32x60")
    trace = bench.trace(size)
    rounds = bench.measure(trace, alone=True)
    section = _open_section(size, trace, rounds)
    judged = not bench.quick
    over = Bound("the whole report: CPU time over the floor", 10, "x", note="aim 7")
    section.judge(over, rounds.over_floor(rounds.alone), judged=judged)
    extra = write_spread(rounds.over_floor(rounds.first), "x")
    section.texts.append(
        "The report that is compared with the floor stores nothing, like the floor. By default, "
        "`analyze` also stores the report and the dashboard's index. This takes "
        f"{extra} the CPU time of the floor."
    )
    memory = Bound("memory of its processes", 0.8, "GiB")
    section.judge(memory, _peaks(rounds.first, GIB), judged=judged)
    section.judge(Bound("`tracelens info`: CPU time", 1.5, "s"), _cpu(rounds.info), judged=judged)
    info = Bound("`tracelens info`: memory", 250, "MB")
    section.judge(info, _peaks(rounds.info, _MEGABYTE), judged=judged)
    second = Bound("the same report as the second verb: CPU time of the first one's", 15, "%")
    section.judge(second, rounds.second_share(), judged=judged)
    equal = Bound.yes("the second report equals the first, byte for byte")
    section.judge(equal, [float(rounds.equal)], judged=True)
    return section


def many_files(bench: Bench) -> Section:
    """Measure what files cost: many ranks of few steps."""
    size = bench.size("4096x46", "128x46")
    trace = bench.trace(size)
    rounds = bench.measure(trace, second=False)
    section = _open_section(size, trace, rounds)
    judged = not bench.quick
    over = Bound("the whole report: CPU time over the floor", _OF_FILES, "x", note=_TEN_SECONDS)
    section.judge(over, rounds.over_floor(rounds.first), judged=judged)
    both = [max(a.files, b.files) for a, b in zip(rounds.first, rounds.info, strict=True)]
    files = Bound("files of the trace open at once, in all processes", MOST_OPEN, "")
    section.judge(files, both, judged=judged)
    section.judge(Bound("`tracelens info`: CPU time", 3, "s"), _cpu(rounds.info), judged=judged)
    return section


def small_run(bench: Bench) -> Section:
    """Measure a run of six thousand events, whose report is start and little else."""
    size = Size(4, 49)
    trace = bench.trace(size)
    imports: list[Cost] = []
    report: list[Cost] = []
    info: list[Cost] = []
    rounds = bench.rounds if bench.quick else max(bench.rounds, _SMALL_ROUNDS)
    for _ in range(rounds):
        imports.append(bench.imports())
        report.append(bench.analyze(trace, "--no-keep"))
        info.append(bench.verb("info", trace))
    section = Section(size.title)
    for verb, costs, seconds in (("info", info, 0.45), ("analyze --no-keep", report, 0.8)):
        note = f"{seconds} s where they take {_IMPORTS_S} s, as when the bound was set"
        label = f"`tracelens {verb}`: CPU time over that of importing polars, pyarrow and numpy"
        ratios = [a.cpu / b.cpu for a, b in zip(costs, imports, strict=True)]
        section.judge(
            Bound(label, round(seconds / _IMPORTS_S, 2), "x", note=note), ratios, judged=True
        )
    rows = [("import polars, pyarrow, numpy", imports), ("`tracelens info`", info)]
    rows.append(("`tracelens analyze --no-keep`", report))
    section.texts.append(table("What each takes", _COSTS, [_costs(*row) for row in rows]))
    return section


def hundred_million(bench: Bench) -> Section:
    """Measure 10^8 events, how costs grow from 10^6 on, and what 10^9 would take."""
    size, small = bench.size("512x5919", "32x120"), bench.size("512x59", "32x24")
    trace = bench.trace(size)
    limited = supports("--memory")
    options = ("--memory", MEMORY) if limited else ()
    rounds = bench.measure(trace, *options)
    section = _open_section(size, trace, rounds)
    judged = not bench.quick
    over = Bound("the whole report: CPU time over the floor", 15, "x")
    section.judge(over, rounds.over_floor(rounds.first), judged=judged)
    memory = Bound(f"memory of its processes with `--memory {MEMORY}`", 1.2, "GiB")
    without = "" if limited else "this version has no --memory: measured without"
    section.judge(memory, _peaks(rounds.first, GIB), judged=judged, why=without)
    section.judge(Bound("`tracelens info`: CPU time", 2, "s"), _cpu(rounds.info), judged=judged)
    start = bench.measure(bench.trace(Size(8, 20)), second=False, info=False)
    fewer = bench.measure(bench.trace(small), *options, second=False, info=False)
    bound = Bound(
        f"growth from {small.events / 1e6:.2g} M events: exponent of the CPU time", 1.05, ""
    )
    section.judge(
        bound, _exponents(start, fewer, rounds, size.events / small.events), judged=judged
    )
    section.texts.append(
        "The exponent says how CPU time grows with the number of events. It leaves out the CPU time of "
        f"the report of 8 ranks x 20 steps ({write_spread(_cpu(start.first), 's')}), which is only the "
        f"start of the command. The smaller run ({small.title}) takes "
        f"{write_spread(_cpu(fewer.first), 's')}."
    )
    section.texts.append(_billion(bench, start))
    return section


def _exponents(start: Rounds, small: Rounds, large: Rounds, growth: float) -> list[float]:
    """Return by what power of the number of events the CPU time grows, a value a round."""
    begin = median(_cpu(start.first))
    pairs = zip(_cpu(small.first), _cpu(large.first), strict=True)
    return [math.log((b - begin) / (a - begin)) / math.log(growth) for a, b in pairs]


def _billion(bench: Bench, start: Rounds) -> str:
    """Say what 10^9 events would take, by a real run of a part of its files."""
    part_size = bench.size("64x7398", "8x200")
    rounds = bench.measure(bench.trace(part_size), second=False, info=False)
    extra_cpu_s = median(_cpu(rounds.first)) - median(_cpu(start.first))
    maps = [maps_of(bench.trace(part_size)) for _ in range(bench.rounds)]
    larger = _BILLION / part_size.events
    minutes, of_maps = extra_cpu_s * larger / 60, median(maps) * larger / 60
    rest = max(minutes - of_maps, 0.0)
    gigabytes = written_bytes(bench.trace(part_size)) * larger / 1e9
    rows = [[f"{count:,}", f"{rest + of_maps / count:.1f}"] for count in _WORKERS]
    return (
        f"**10^9 events**, 4,096 ranks x 7,398 steps: 64 of their files ({part_size.title}) take "
        f"{write_spread(_cpu(rounds.first), 's')} of CPU time; their maps, on one thread, "
        f"{write_spread(maps, 's')}. If both times, without the start, grow in proportion to the "
        f"events, all files ({gigabytes:.0f} GB) take {minutes:.0f} minutes of one core, of which "
        f"{of_maps:.0f} are maps. The table gives the time of a report, under two assumptions: each "
        "worker has its own core, and the process that merges never waits for the tables of the maps."
        "\n\n" + table("10^9 events, by arithmetic", ("workers", "minutes"), rows)
    )


def _open_section(size: Size, trace: Path, rounds: Rounds) -> Section:
    """Begin a section with what every arm shows: costs, and that the report is right."""
    written = written_bytes(trace)
    section = Section(f"{size.title}, {written / _MEGABYTE:.0f} MB")
    costs_by_name = {"floor": rounds.floor, "`tracelens analyze --no-keep`": rounds.alone}
    costs_by_name |= {"`tracelens analyze`": rounds.first}
    costs_by_name |= {"the same again": rounds.second, "`tracelens info`": rounds.info}
    rows = [_costs(name, costs) for name, costs in costs_by_name.items() if costs]
    section.texts.append(table("What each takes", _COSTS, rows))
    right = Bound.yes("the report's first finding is the planted rank")
    section.judge(right, [float(rounds.finds(size))], judged=True)
    return section


def _costs(name: str, costs: list[Cost]) -> list[str]:
    columns: list[Callable[[Cost], float]] = [
        lambda cost: cost.cpu,
        lambda cost: cost.wall,
        lambda cost: cost.peak / GIB,
        lambda cost: cost.files,
    ]
    return [name, *(write_spread([column(cost) for cost in costs]) for column in columns)]


def _cpu(costs: list[Cost]) -> list[float]:
    return [cost.cpu for cost in costs]


def _peaks(costs: list[Cost], unit: float) -> list[float]:
    return [cost.peak / unit for cost in costs]
