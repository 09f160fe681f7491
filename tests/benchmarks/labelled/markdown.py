"""The results as the tables of docs/accuracy.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.labelled.peers import PEERS
from benchmarks.labelled.targets import ASKED, targets, worst_of
from benchmarks.published import table, with_measured

if TYPE_CHECKING:
    from collections.abc import Iterable

SCRIPT: Final = "tests/benchmarks/accuracy.py"
NONE: Final = "-"  # not asked, or nothing to measure


def with_tables(page: str, results: dict[str, Any]) -> str:
    """Put the tables between the page's markers."""
    return with_measured(page, SCRIPT, tables_of(results))


def tables_of(results: dict[str, Any]) -> str:
    """Return the tables of what was measured."""
    parts = {"healthy": _healthy, "recall": _recall, "clocks": _clocks, "kinds": _kinds}
    tables = [make(results[name]) for name, make in parts.items() if name in results]
    if "kinds" in results:
        tables += [_confusion(results["kinds"]), _peers(results["kinds"])]
    return "\n\n".join([targets(results), *tables])


def _percent(share: float | None, digits: int = 1) -> str:
    return NONE if share is None else f"{100 * share:.{digits}f} %"


def _write_interval(interval: list[float], digits: int = 1) -> str:
    return f"{100 * interval[0]:.{digits}f} to {100 * interval[1]:.{digits}f}"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:g}"


def _healthy(rows: list[dict[str, Any]]) -> str:
    head = ("ranks", "noise", "runs", "with a fault", "95 % interval, %", *PEERS)
    body = [
        (
            str(row["ranks"]),
            f"{row['level']} {row['family']}",
            str(row["runs"]),
            _percent(row["share"], 2),
            _write_interval(row["interval"], 2),
            *(_percent(row["peers"][name]) for name in PEERS),
        )
        for row in rows
    ]
    return table("Healthy runs that accuse somebody", head, body)


def _recall(rows: list[dict[str, Any]]) -> str:
    head = (
        "ranks", "noise", "slowdown", "runs", "found", "95 % interval, %", "precision",
        "onset p90, steps", "saving: truth", "its usual error", "interval covers", *PEERS,
    )  # fmt: skip
    body = [
        (
            str(row["ranks"]),
            row["family"],
            _percent(row["slowdown"], 0),
            str(row["runs"]),
            _percent(row["recall"]),
            _write_interval(row["interval"]),
            _percent(row["precision"]),
            _number(row["onset_p90_steps"]),
            _percent(row["saving_truth"], 2),
            _percent(row["saving_error_points"], 3),
            _percent(row["interval_covers"], 0),
            *(
                f"{_percent(row['peers'][name]['recall'], 0)} / "
                f"{_percent(row['peers'][name]['precision'], 0)}"
                for name in PEERS
            ),
        )
        for row in rows
    ]
    return table("A rank slowed in 40 % of 1000 steps (other tools: found / precision)", head, body)


def _clocks(rows: list[dict[str, Any]]) -> str:
    head = (
        "situation", "runs", "median, us", "99 %, us", "asked", "worst, us", "stated, us",
        "hosts covered", "jump off by, steps", "latest arrival blames the late rank: raw", "aligned",
    )  # fmt: skip
    body = [
        (
            row["situation"],
            str(row["runs"]),
            _number(row["median_us"]),
            _number(row["p99_us"]),
            _number(row["target_us"]),
            _number(row["worst_us"]),
            _number(row["stated_us"]),
            _percent(row["covered"]),
            _number(row["jump_steps"]),
            _percent(row["blamed_raw"], 0),
            _percent(row["blamed_aligned"], 0),
        )
        for row in rows
    ]
    return table("Clock errors, 64 hosts", head, body)


def _kinds(rows: list[dict[str, Any]]) -> str:
    """Return the verdicts: one line a kind, one column a size and noise."""
    cell_keys = list(dict.fromkeys((row["ranks"], row["level"]) for row in rows))
    cells = {(row["kind"], row["ranks"], row["level"]): row for row in rows}
    head = (
        "kind of run", "verdict", *(f"{ranks} {level}" for ranks, level in cell_keys),
        "wrong blame", "phase", "pattern", "onset p90", "saving right", "its error, median",
        "interval covers",
    )  # fmt: skip
    body = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        kind_rows = [row for row in rows if row["kind"] == kind]
        right = [
            _percent(cells[kind, *place]["right"], 0) if (kind, *place) in cells else NONE
            for place in cell_keys
        ]
        body.append((kind, kind_rows[0]["verdict"], *right, *_summary(kind_rows)))
    runs = sorted({row["runs"] for row in rows})
    title = f"Verdicts that are right, end to end ({' or '.join(map(str, runs))} runs a cell)"
    return f"{table(title, head, body)}\n\n{_reached(rows)}"


def _reached(rows: list[dict[str, Any]]) -> str:
    """Name the kinds that miss what is asked, with their worst cell."""
    worst = sorted(worst_of(rows).items(), key=lambda pair: pair[1])
    missed = [f"{kind} ({_percent(share, 0)})" for kind, share in worst if share < ASKED]
    bound = _percent(ASKED, 0)
    if not missed:
        return f"All kinds are right in {bound} of the runs of every cell."
    return (
        f"Not right in {bound} of the runs of every cell, with the share in the worst: "
        f"{', '.join(missed)}. Not asked of a slowdown of 3 %, which so few steps cannot show."
    )


def _summary(rows: list[dict[str, Any]]) -> list[str]:
    onset = [row["onset_steps"]["p90"] for row in rows if row["onset_steps"]]
    error = [row["saving_error"]["median"] for row in rows if row["saving_error"]]
    return [
        _percent(_mean(row["wrong_blame"] for row in rows)),
        _percent(_mean(row["phase"] for row in rows), 0),
        _percent(_mean(row["pattern"] for row in rows), 0),
        _number(max(onset, default=None)),
        _percent(_mean(row.get("saving_right") for row in rows), 0),
        _percent(_mean(error), 0),
        _percent(_mean(row["interval_covers"] for row in rows), 0),
    ]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _confusion(rows: list[dict[str, Any]]) -> str:
    """Return what was said instead, for each kind of verdict, over all runs."""
    counts_by_verdict: dict[str, dict[str, int]] = {}
    for row in rows:
        counts = counts_by_verdict.setdefault(row["verdict"], {})
        for kind, count in row["said"].items():
            counts[kind] = counts.get(kind, 0) + count
    body = [
        (truth, str(sum(counts.values())), ", ".join(f"{k} {n}" for k, n in _largest(counts)))
        for truth, counts in sorted(counts_by_verdict.items())
    ]
    return table("What is said of which truth, all runs", ("truth", "runs", "said"), body)


def _largest(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _peers(rows: list[dict[str, Any]]) -> str:
    """Return how other rules do on the same runs: false alarms and ranks found."""
    with_peers = [row for row in rows if row["peers"]]
    healthy = [row for row in with_peers if row["verdict"] == "none"]
    slow = [row for row in with_peers if row["verdict"] in {"straggler", "slow_host"}]
    own_row = (
        "TraceLens",
        _percent(_mean(1 - row["right"] for row in healthy)),
        _percent(_mean(row["found"] for row in slow)),
        _percent(_mean(row["wrong_blame"] for row in slow)),
    )
    peer_rows = [
        (
            name,
            _percent(_mean(row["peers"][name]["false"] for row in healthy)),
            _percent(_mean(row["peers"][name]["found"] for row in slow)),
            _percent(_mean(row["peers"][name]["false"] for row in slow)),
        )
        for name in PEERS
    ]
    head = ("rule", "healthy runs accused", "slow ranks all named", "somebody else named too")
    return table(
        "Beside other tools' rules, end to end, skewed clocks", head, [own_row, *peer_rows]
    )
