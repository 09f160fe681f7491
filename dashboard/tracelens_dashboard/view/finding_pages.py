"""The pages of findings: where the evidence of each kind is shown, and whose cards a page holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tracelens.model.findings import Finding

STRAGGLERS: Final = "/stragglers"
STEPS: Final = "/steps"
COLLECTIVES: Final = "/collectives"
OVERLAP: Final = "/interleaving"
SHARDS: Final = "/shards"
LIFE: Final = "/life"


class EvidencePage(NamedTuple):
    """The page with the evidence of a finding, and the label of the link to it."""

    path: str
    label: str


_KINDS_BY_PAGE: Final = {
    EvidencePage(STRAGGLERS, "All ranks"): (
        "straggler", "slow_host", "load_imbalance", "stage_imbalance",
    ),
    EvidencePage(STEPS, "Step by step"): (
        "slow_all", "data_stall", "checkpoint_stall", "gc_stall",
    ),
    EvidencePage(COLLECTIVES, "All collectives"): (
        "slow_link", "congestion", "small_messages", "repeated_reductions", "desync", "hang",
    ),
    EvidencePage(LIFE, "All attempts"): ("restarts",),
    EvidencePage(OVERLAP, "Overlap"): ("exposed_communication", "update_gap"),
    EvidencePage(SHARDS, "All shards"): (
        "ps_hot_shard", "ps_cpu_bound", "ps_network_bound", "ps_incast", "ps_uninstrumented",
    ),
    EvidencePage(SHARDS, "Staleness and fairness"): ("stale_worker",),
}  # fmt: skip
# A kind that is missing here has its evidence on the timeline.
EVIDENCE_PAGES: Final = {kind: page for page, kinds in _KINDS_BY_PAGE.items() for kind in kinds}
ALSO_SHOWN_ON: Final = {
    STRAGGLERS: {"slow_all", "data_stall", "checkpoint_stall", "gc_stall"},
    COLLECTIVES: {"exposed_communication"},
    SHARDS: {"exposed_communication"},
    OVERLAP: {"repeated_reductions", "checkpoint_stall"},
}


def is_shown_on(finding: Finding, path: str) -> bool:
    """Return True if the page at `path` holds the card of a finding."""
    page = EVIDENCE_PAGES.get(finding.kind)
    return (
        (page is not None and page.path == path)
        or finding.kind in ALSO_SHOWN_ON.get(path, ())
        or (path == SHARDS and bool(finding.shards))
    )
