"""Findings: what a report says, one at a time; `finding_kinds` is the table of their kinds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from math import hypot
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from tracelens.model import fmt
from tracelens.model.display import upper_layers
from tracelens.model.finding_entries import Category, find_field_names
from tracelens.model.finding_kinds import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Unpack

TWO_SIDED: Final = 1.96  # standard deviations: 95 % of a normal distribution [definition]
# of a saving: predictions have this standard deviation, 1.48 times their
# median error [tests/benchmarks/interventions.py]
PREDICTION_ERROR: Final = 0.09

MIN_SAVING_IF_CRITICAL: Final = 0.1  # of the job: a fault that costs as much is critical [policy]
MIN_SAVING_IF_MODERATE: Final = 0.02  # of the job: a fault that costs less is minor [policy]

Pattern = Literal["persistent", "transient", "intermittent", "drifting", "sparse", "migrating"]


class Details(TypedDict, total=False):
    """Fields of a finding but its kind, category and sentence, which `Finding.of` takes as keywords."""

    saving: float | None
    interval: tuple[float, float] | None
    cost: float | None
    slowdown: float | None
    confidence: float | None
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    shards: tuple[int, ...]
    phase: str | None
    pattern: Pattern | None
    steps: tuple[int, int] | None
    tensor: str | None
    function: str | None
    evidence: Mapping[str, Any]
    fix: Any


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fault, an opportunity, or a limitation of the trace.

    `cost` is the others' summed waiting / (ranks x job time); `saving` the share of job time that
    fixing it would save (counterfactual), with `interval` its 95 % interval; null = not measurable.
    `steps` is (first, last), inclusive. `evidence` holds the numbers behind the sentence. `fix` is what
    was replayed to price it (`tracelens.replay.edits.fixes`), null = no replay; no report stores it.
    """

    kind: str
    category: Category
    sentence: str
    saving: float | None = None
    interval: tuple[float, float] | None = None
    cost: float | None = None
    slowdown: float | None = None
    confidence: float | None = None
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    shards: tuple[int, ...] = ()
    phase: str | None = None
    pattern: Pattern | None = None
    steps: tuple[int, int] | None = None
    tensor: str | None = None
    function: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fix: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse a kind that has no entry in `KINDS`."""
        if self.kind not in KINDS:
            known = ", ".join(KINDS)
            raise ValueError(f"{self.kind!r} is no kind of finding; known are {known}")

    @classmethod
    def of(
        cls,
        kind: str,
        fields: Mapping[str, str],
        *,
        case: str = "",
        category: Category | None = None,
        more: Sequence[str] = (),
        **details: Unpack[Details],
    ) -> Finding:
        """Make a finding with the sentence of its kind.

        Args:
            kind: A key of `KINDS`.
            fields: What is filled into the sentence, as text.
            case: Which of the kind's sentences, if not the main one.
            category: Where it depends on the finding; else that of the kind.
            more: Sentences that follow.
            details: The other fields; `interval` is what the run's noise leaves of a saving, to which
                is added what predictions are off by (`widen_by_prediction_error`).
        """
        entry = KINDS[kind]
        final_category = category or entry.category
        if final_category is None:
            raise ValueError(f"a finding of kind {kind!r} needs a category: its kind has none")
        filled_fields = dict(fields)
        saving, interval = details.get("saving"), details.get("interval")
        if saving is not None and interval is not None:
            low, high = widen_by_prediction_error(saving, interval)
            details["interval"] = max(low, 0.0), min(high, 1.0)
        if saving is not None and "saving" in find_field_names(entry.find_template(case)):
            filled_fields.setdefault("saving", fmt.saving(saving, details.get("interval")))
        sentence = " ".join([entry.fill_in(case, filled_fields), *more])
        return cls(kind=kind, category=final_category, sentence=sentence, **details)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but `fix`, as reports store them."""
        values = asdict(replace(self, fix=None))
        del values["fix"]
        return values

    def __repr__(self) -> str:
        """Return the kind, the category and the sentence in one line."""
        return f"Finding({self.kind}, {self.category}: {self.sentence!r})"

    def _repr_html_(self) -> str:
        page: str = upper_layers().to_html.write_findings_fragment([self])
        return page


def first_sentence(finding: Finding) -> str:
    """Return a finding's first sentence: its subject and its time."""
    return finding.sentence.split(". ")[0].removesuffix(".") + "."


def rate_severity(finding: Finding) -> str:
    """Return the severity of a fault in a word, by the saving of fixing it."""
    if KINDS[finding.kind].ends_job:
        return "critical"
    if finding.saving is None:
        return "limits what is known" if KINDS[finding.kind].group == "trace" else "cost not known"
    if finding.saving >= MIN_SAVING_IF_CRITICAL:
        return "critical"
    return "moderate" if finding.saving >= MIN_SAVING_IF_MODERATE else "minor"


def is_suppressed(finding: Finding, findings: Iterable[Finding]) -> bool:
    """Return True if other findings explain the same loss."""
    rule = KINDS[finding.kind].suppression
    if rule is None:
        return False
    explanations = [explanation for explanation in findings if explanation.kind in rule.kinds]
    if rule.min_share is None:
        explained_ranks = {rank for explanation in explanations for rank in explanation.ranks}
        return bool(finding.ranks) and set(finding.ranks) <= explained_ranks
    savings = [explanation.saving or 0.0 for explanation in explanations]
    least = rule.min_share * (finding.saving or 0.0)
    return sum(savings) >= least if rule.is_summed else any(saving >= least for saving in savings)


def name_subject(finding: Finding) -> str:
    """Name whom a finding is about: hosts, shards or ranks; nothing where it is about the whole job."""
    entry = KINDS[finding.kind]
    if entry.group in {"whole job", "overlap"} or not (finding.ranks or finding.shards):
        return ""
    if entry.names_hosts and finding.hosts:
        return fmt.listing("host", finding.hosts)
    if finding.shards:
        return fmt.listing("PS", finding.shards)
    if finding.pattern == "migrating":
        return f"{fmt.count(len(finding.ranks), 'rank')} at different times"
    return fmt.listing("rank", finding.ranks)


def widen_by_prediction_error(saving: float, interval: tuple[float, float]) -> tuple[float, float]:
    """Widen the 95 % interval of a saving, which noise in the run gives, by the error of predictions.

    Where fixes were really made, what they saved differed from the prediction by more than noise
    explains: a rank that is no longer late finds caches and cores otherwise. Both arguments have one
    unit, such as shares.
    """
    low, high = interval
    error = TWO_SIDED * PREDICTION_ERROR * saving
    return saving - hypot(saving - low, error), saving + hypot(high - saving, error)
