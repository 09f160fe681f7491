"""Changes groups of modules in small ways, a sample of each, and publishes how many are noticed.

What is drawn depends on the seed alone. Whoever writes tests for survivors draws with another seed
before publishing: of changes that tests were written for, more are noticed than of others.

Run: make mutate GROUPS="schema clocks" [ARGS="--seed 2 --one-in 10"] [PUBLISH=1]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.published import publish as write
from benchmarks.published import table
from scipy.stats import binomtest
from support.mutate import (
    UNSEEN,
    Change,
    Sample,
    changes_of,
    copied,
    print_survivors,
    say,
    tests_of,
)
from support.sanitize import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESULTS: Final = ROOT / ".mutation"
PAGE: Final = "reliability.md"
SCRIPT: Final = "make mutate"
HEADS: Final = ("module", "changes", "made", "noticed", "survived", "share noticed")


@dataclass(frozen=True)
class Group:
    """Modules by patterns, the tests that concern them, and of how many changes one is made."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    one_in: int
    direct: bool = True  # those that import a module, where there are any, and no others of these
    without: tuple[str, ...] = ("__init__.py",)
    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of single modules, instead

    def files(self) -> list[Path]:
        """Return the modules, relative to the checkout."""
        found = {path for pattern in self.modules for path in ROOT.glob(pattern)}
        return sorted(path.relative_to(ROOT) for path in found if path.name not in self.without)

    def tests_of(self, file: Path) -> list[str]:
        """Return the tests that concern a module, in the order in which they run."""
        if file.stem in self.own:
            return [test for part in self.own[file.stem] for test in list_test_files(part)]
        tests = [test for part in self.tests for test in list_test_files(part)]
        importing = set(tests_of(file)) if self.direct else set()
        return [test for test in tests if test in importing] or tests


_CONVERTED: Final = (  # how records become columns
    "tests/conversion/test_records.py",
    "tests/conversion/test_sampled_steps.py",
    "tests/conversion/test_depth.py",
    "tests/conversion/test_depth_across_chunks.py",
    "tests/conversion/test_device_times.py",
    "tests/conversion/test_convert.py",
    "tests/conversion/test_unusable_segments.py",
    "tests/schema/test_format_document.py",
    "tests/conversion/test_decode_is_lossless.py",
)
_WRITTEN: Final = (  # how columns become files
    "tests/conversion/test_messages.py",
    "tests/conversion/test_arrow_file.py",
    "tests/readers/native/test_plain_columns.py",
    "tests/faults/test_checksums.py",
)
GROUPS: Final = {
    "schema": Group(
        ("tracelens/schema/*.py",),
        (
            "tests/schema",
            "tests/faults/test_nested.py",
            "tests/faults/test_wrong_schema.py",
            "tests/instrument/retention/test_ring.py",
            "tests/readers/native/test_summary.py",
        ),
        one_in=17,
        own={
            "arrow": (
                "tests/schema/test_format_document.py",
                "tests/conversion/test_arrow_file.py",
            ),
            "json_text": ("tests/schema/test_side_tables.py", "tests/faults/test_nested.py"),
        },
        without=("__init__.py", "gate.py"),
    ),
    "conversion": Group(
        ("tracelens/conversion/*.py",),
        (*_CONVERTED, *_WRITTEN),
        one_in=90,
        own={
            "arrow_file": (*_WRITTEN, "tests/conversion/test_incremental.py"),
            "batches": (*_CONVERTED, "tests/conversion/test_incremental.py"),
            "columns": _CONVERTED,
            "definitions": (
                "tests/conversion/test_records.py",
                "tests/conversion/test_unusable_segments.py",
                "tests/schema/test_format_document.py",
                "tests/conversion/test_arrow_file.py",
                "tests/conversion/test_thinning.py",
                "tests/conversion/test_decode_is_lossless.py",
            ),
            "flatbuffers": _WRITTEN,
            "folder": (
                "tests/conversion/test_records.py",
                "tests/conversion/test_is_live.py",
                "tests/conversion/test_convert.py",
                "tests/conversion/test_unusable_segments.py",
                "tests/conversion/test_incremental.py",
                "tests/faults/test_nothing_outside.py",
            ),
            "incremental": (
                "tests/conversion/test_incremental.py",
                "tests/conversion/test_sampled_steps.py",
                "tests/instrument/retention/test_ring.py",
            ),
            "layout": _WRITTEN,
            "lock": ("tests/conversion/test_lock.py", "tests/conversion/test_convert.py"),
            "messages": _WRITTEN,
            "retention": (
                "tests/conversion/test_thinning.py",
                "tests/conversion/test_last_steps.py",
                "tests/conversion/test_sampled_steps.py",
                "tests/instrument/retention/test_ring.py",
            ),
            "segments": (
                "tests/conversion/test_convert.py",
                "tests/conversion/test_is_live.py",
                "tests/conversion/test_sampled_steps.py",
                "tests/conversion/test_unusable_segments.py",
                "tests/conversion/test_device_times.py",
                "tests/readers/native/test_segments_elsewhere.py",
                "tests/faults/test_killed.py",
            ),
            "tally": (
                "tests/conversion/test_tally.py",
                "tests/conversion/test_arrow_file.py",
                "tests/readers/native/test_summary.py",
            ),
        },
    ),
    "gate": Group(("tracelens/schema/gate.py",), ("tests/schema/test_gate.py",), one_in=2),
    "clocks": Group(
        ("tracelens/align/clocks/*.py",),
        (
            "tests/align/clocks/test_maps.py",
            "tests/align/clocks/test_readings.py",
            "tests/align/clocks/test_whole_trace.py",
            "tests/align/clocks/test_exit_lags.py",
            "tests/align/clocks/test_first_host.py",
            "tests/align/clocks/test_fallbacks.py",
            "tests/align/clocks/test_accuracy.py",
            "tests/align/clocks/test_requests.py",
        ),
        one_in=70,
        own={
            "exits": (
                "tests/align/clocks/test_fits.py",
                "tests/align/clocks/test_exit_lags.py",
                "tests/align/clocks/test_first_host.py",
                "tests/align/clocks/test_fallbacks.py",
                "tests/align/clocks/test_accuracy.py",
            ),
            "maps": (
                "tests/align/clocks/test_maps.py",
                "tests/align/clocks/test_ties.py",
                "tests/align/clocks/test_readings.py",
            ),
            "readings": (
                "tests/align/clocks/test_ties.py",
                "tests/align/clocks/test_readings.py",
                "tests/align/clocks/test_fallbacks.py",
                "tests/align/clocks/test_requests.py",
            ),
            "requests": (
                "tests/align/clocks/test_exchanges.py",
                "tests/align/clocks/test_requests.py",
                "tests/align/clocks/test_fallbacks.py",
            ),
        },
    ),
    "stragglers": Group(
        ("tracelens/analyses/stragglers/*.py",),
        ("tests/analyses/stragglers",),
        one_in=60,
        direct=False,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Change each group's modules, keep what was found, and publish what is kept."""
    parser = argparse.ArgumentParser(prog="make mutate")
    parser.add_argument("groups", nargs="*", metavar="group", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--one-in", type=int, help="of how many changes one is made")
    parser.add_argument("--only", nargs="+", default=(), help="modules by their last name")
    parser.add_argument("--publish", action="store_true", help=f"write docs/{PAGE}")
    options = parser.parse_args(arguments)
    if unknown := set(options.groups) - GROUPS.keys():
        parser.error(f"no group {', '.join(sorted(unknown))}: expected {', '.join(GROUPS)}")
    failed = [
        name
        for name in options.groups
        if not examined(
            name, Sample(options.one_in or GROUPS[name].one_in, options.seed), options.only
        )
    ]
    if options.publish:
        publish()
    return 2 if failed else 0


def examined(name: str, sample: Sample, only: Sequence[str]) -> bool:
    """Change the modules of a group, and keep what was found; false where tests fail by themselves."""
    group = GROUPS[name]
    by_file: dict[str, list[Change]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(Path(folder, "tree"))
        for file in group.files():
            if only and file.stem not in only:
                continue
            say(f"\n{file}")
            changes = changes_of(tree, file, group.tests_of(file), sample)
            if changes is None:
                return False
            print_survivors(changes)
            by_file[str(file)] = changes
            _keep(name, sample, by_file)
    return True


def list_test_files(part: str) -> list[str]:
    """Return the files of tests in a folder, or the file itself."""
    place = ROOT / part
    files = [place] if place.is_file() else sorted(place.rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files]


def _keep(name: str, sample: Sample, found: dict[str, list[Change]]) -> None:
    modules = {
        file: {
            "outcomes": Counter(change.outcome for change in changes),
            "survivors": [asdict(change) for change in changes if change.outcome == "survived"],
        }
        for file, changes in found.items()
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    if {key: before.get(key) for key in asdict(sample)} == asdict(sample):
        modules = {**before["modules"], **modules}
    kept = {**asdict(sample), "modules": dict(sorted(modules.items()))}
    path.write_text(json.dumps(kept, indent=1) + "\n")


def publish() -> None:
    """Write a table of each group of which results are kept into the documentation."""
    sections = [
        _to_section(name, json.loads((RESULTS / f"{name}.json").read_text()))
        for name in GROUPS
        if (RESULTS / f"{name}.json").exists()
    ]
    if not sections:
        sys.exit("No group was examined yet.")
    write(PAGE, SCRIPT, "\n\n".join(sections))


def _to_section(name: str, stored: dict[str, object]) -> str:
    modules = stored["modules"]
    assert isinstance(modules, dict)
    rows = [_row(f"`{file}`", Counter(found["outcomes"])) for file, found in modules.items()]
    total = sum((Counter(found["outcomes"]) for found in modules.values()), Counter[str]())
    shown = [row for row in rows if row[2] != "0"]
    text = table(name.capitalize(), HEADS, [*shown, _row("**all**", total)])
    made = total.total() - total[UNSEEN]
    bounds = binomtest(made - total["survived"], made).proportion_ci(method="wilson")
    drawn = (
        f"One of {stored['one_in']} possible changes was made (seed {stored['seed']})"
        if stored["one_in"] != 1
        else "Each possible change was made"
    )
    return (
        f"{text}\n\n{drawn}. The tests notice {bounds.low:.0%} to {bounds.high:.0%} of all possible "
        "changes (95 % interval)."
    )


def _row(name: str, outcomes: Counter[str]) -> list[str]:
    count = outcomes.total() - outcomes[UNSEEN]
    noticed = count - outcomes["survived"]
    share = f"{noticed / count:.0%}" if count else ""
    return [name, *map(str, (outcomes.total(), count, noticed, outcomes["survived"])), share]


if __name__ == "__main__":
    sys.exit(main())
