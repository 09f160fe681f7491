"""The table of finding kinds is whole, and the only place outside of analyses that names a kind."""

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from math import hypot
from pathlib import Path
from typing import get_args

import pytest

from tracelens.accounting.categories import CATEGORIES
from tracelens.model.finding_entries import Category, FindingKind, Group, find_field_names
from tracelens.model.finding_kinds import KINDS
from tracelens.model.findings import (
    PREDICTION_ERROR,
    Details,
    Finding,
    is_suppressed,
    name_subject,
    widen_by_prediction_error,
)

ROOT = Path(__file__).parents[2]
ANALYSES = ROOT / "tracelens" / "analyses"
VERDICTS = ROOT / "tracelens" / "verdicts"
TABLES = (
    ROOT / "tracelens" / "model" / "finding_kinds.py",
    ROOT / "dashboard" / "tracelens_dashboard" / "view" / "finding_pages.py",
)
# Names that are no kinds where they stand: a cause of the waterfall, and a kind of note.
OTHER_MEANINGS = {"slow_host": "cause", "desync": "note"}

kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.kind)


def named_in(path: Path) -> set[str]:
    return set(KINDS) & set(re.findall(r"[\"'](\w+)[\"']", path.read_text(encoding="utf-8")))


def products() -> Iterator[Path]:
    for room in ("tracelens", "instrument/tracelens_instrument", "dashboard/tracelens_dashboard"):
        yield from (ROOT / room).rglob("*.py")


@kinds
def test_an_entry_has_all_fields(kind: FindingKind) -> None:
    """Words for people, a group, and a category or none."""
    assert kind.title[:1].isupper()
    assert kind.group in get_args(Group)
    assert kind.category in {None, *get_args(Category)}
    assert kind.worst_step_category in {None, *CATEGORIES}
    assert kind.suppression is None or set(kind.suppression.kinds) <= set(KINDS) - {kind.kind}


@kinds
def test_templates_have_plain_fields(kind: FindingKind) -> None:
    """Each is filled in with text alone, by names."""
    for template in (kind.sentence, *kind.cases.values()):
        names = find_field_names(template)
        assert names
        assert all(re.fullmatch(r"[a-z]+", name) for name in names)
        assert template.format(**{name: name for name in names})


def test_titles_are_unique() -> None:
    """A title says which kind it is; no entry hides another one."""
    assert len({kind.title for kind in KINDS.values()}) == len(KINDS)
    entries = re.findall(
        r'^        kind="(\w+)"', TABLES[0].read_text(encoding="utf-8"), re.MULTILINE
    )
    assert entries == list(KINDS)


def test_each_kind_is_reported() -> None:
    """By an analysis, whose module names it."""
    named = {kind for path in ANALYSES.rglob("*.py") for kind in named_in(path)}
    assert set(KINDS) - named == set()


def test_nothing_else_names_a_kind() -> None:
    """A kind is added by its analysis, its entry and its page; else only a verdict knows one."""
    naming_modules = {
        (str(path.relative_to(ROOT)), kind)
        for path in products()
        if path not in TABLES
        and (not {ANALYSES, VERDICTS} & {*path.parents} or path == ANALYSES / "__init__.py")
        for kind in named_in(path) - set(OTHER_MEANINGS)
    }
    assert naming_modules == set()


def test_details_are_those_of_a_finding() -> None:
    """`Finding.of` passes on every field but those that it makes."""
    made = {"kind", "category", "sentence"}
    assert list(Details.__annotations__) == [f.name for f in fields(Finding) if f.name not in made]


def test_a_sentence_is_filled_in() -> None:
    """The saving comes from the finding, with its interval: noise, and what predictions are off by."""
    finding = Finding.of(
        "congestion",
        {
            "who": "all ranks",
            "steps": "steps 3 to 9",
            "ratio": "2.5",
            "link": "no link is the cause",
        },
        saving=0.07,
        interval=(0.068, 0.073),
    )
    assert finding.category == "fault"
    assert finding.sentence.startswith(
        "Transfers are slow for all ranks, steps 3 to 9: they take 2.5x"
    )
    assert finding.sentence.endswith("by 7.0 % (95 % CI 5.7\N{EN DASH}8.3).")
    low, high = widen_by_prediction_error(0.07, (0.068, 0.073))
    error = 1.96 * PREDICTION_ERROR * 0.07
    assert (low, high) == pytest.approx((0.07 - hypot(0.002, error), 0.07 + hypot(0.003, error)))
    assert finding.interval == (low, high)


def test_what_does_not_fit_is_refused() -> None:
    """Unknown kinds, missing and superfluous fields, and a category that nobody gives."""
    with pytest.raises(ValueError, match="'slow' is no kind of finding; known are straggler, "):
        Finding(kind="slow", category="fault", sentence="It is slow.")
    with pytest.raises(
        ValueError, match=r"has the fields \['note'\]; given are \['more', 'note'\]"
    ):
        Finding.of("desync", {"note": "So.", "more": "Even."})
    with pytest.raises(ValueError, match="needs a category"):
        Finding.of("dropped_events", {"lost": "3", "reasons": "none"})


def finding_of(kind: str, saving: float | None = None, ranks: tuple[int, ...] = ()) -> Finding:
    return Finding(kind=kind, category="opportunity", sentence="So.", saving=saving, ranks=ranks)


def test_one_finding_must_explain_half_of_the_exposed_communication() -> None:
    """Two that explain a third each do not."""
    exposed = finding_of("exposed_communication", 0.3)
    assert is_suppressed(exposed, [exposed, finding_of("slow_link", 0.15)])
    assert not is_suppressed(
        exposed, [exposed, finding_of("slow_link", 0.1), finding_of("congestion", 0.1)]
    )
    assert not is_suppressed(exposed, [exposed, finding_of("data_stall", 0.3)])


def test_stragglers_explain_an_imbalance_together() -> None:
    """Two that explain a third each do."""
    uneven = finding_of("load_imbalance", 0.3)
    assert is_suppressed(
        uneven, [uneven, finding_of("straggler", 0.1), finding_of("gc_stall", 0.1)]
    )
    assert not is_suppressed(uneven, [uneven, finding_of("straggler", 0.1)])


def test_a_stale_worker_is_no_straggler_as_well() -> None:
    """If it is the same rank."""
    assert is_suppressed(
        finding_of("straggler", 0.3, (2,)), [finding_of("stale_worker", 0.0, (1, 2))]
    )
    assert not is_suppressed(
        finding_of("straggler", 0.3, (2, 3)), [finding_of("stale_worker", 0.0, (2,))]
    )
    assert not is_suppressed(finding_of("straggler", 0.3), [finding_of("stale_worker", 0.0, (2,))])


def test_whom_a_finding_is_about() -> None:
    """Ranks, hosts or shards; nothing where it is about the whole job."""
    assert name_subject(finding_of("straggler", 0.3, (2, 3))) == "ranks 2 and 3"
    host = replace(finding_of("slow_host", 0.3, (2, 3)), hosts=("node7",))
    assert name_subject(host) == "host node7"
    assert name_subject(replace(finding_of("ps_hot_shard", 0.3), shards=(4,))) == "PS 4"
    wandering = replace(finding_of("straggler", 0.3, (1, 2, 3)), pattern="migrating")
    assert name_subject(wandering) == "3 ranks at different times"
    assert not name_subject(finding_of("slow_all", 0.3, (0, 1)))
