"""The life of a job: attempts, failures, and what became of the wall time (docs/life.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.accounting.life.failures import describe_end
from tracelens.accounting.life.ledger import ATTEMPT_COLUMNS, LIFE_COLUMNS, USES
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.model.result import LifeShares

if TYPE_CHECKING:
    from tracelens.accounting.life.failures import Failure
    from tracelens.accounting.life.ledger import LifeLedger
    from tracelens.facts import Facts

# of the wall time: restarts that cost more than this are a fault, others an opportunity [policy]
MIN_SHARE_LOST_IF_FAULT: Final = 0.05
MAX_USES_NAMED: Final = 4  # uses: the sentence names no more [policy]
# What a job loses because it was started again; all but the first start-up counts.
_OF_RESTARTS: Final = ("repeated", "hanging", "dead")


@dataclass(frozen=True, eq=False)
class Life(DisplayMixin):
    """`attempts` has a row per attempt, `uses` a row per attempt and use of its wall time."""

    attempts: pl.DataFrame
    uses: pl.DataFrame
    shares: LifeShares | None
    findings: tuple[Finding, ...]

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """What a report shows."""
        return {"attempts": self.attempts, "life": self.uses}


def run(facts: Facts) -> Life:
    """Account for the wall time of all attempts."""
    life = facts.life_ledger
    if life is None:
        empty = (pl.DataFrame(schema=ATTEMPT_COLUMNS), pl.DataFrame(schema=LIFE_COLUMNS))
        return Life(*empty, None, ())
    shares = sum_shares(life, facts.failures)
    has_failed = any(attempt.failed_ns is not None for attempt in life.lives[:-1])
    findings = (_report_restarts(life, shares),) if has_failed else ()
    return Life(life.attempts, life.uses, shares, findings)


def sum_shares(life: LifeLedger, failures: list[Failure]) -> LifeShares:
    """Sum up the uses of all attempts; `failures` are those of the last attempt, the cause first."""
    sums = (
        life.uses.group_by("use").agg(pl.col("share").sum()).sort("share", "use", descending=True)
    )
    return LifeShares(
        life.wall_ns,
        life.attempts.height,
        life.goodput,
        dict(sums.iter_rows()),
        life.is_kept_known,
        describe_end(failures),
    )


def _report_restarts(life: LifeLedger, shares: LifeShares) -> Finding:
    """Report that the job was started again, and what that cost."""
    later_start_ups = life.uses.filter((pl.col("use") == "start_up") & (pl.col("attempt") > 1))
    lost_share = sum(shares.uses.get(use, 0.0) for use in _OF_RESTARTS)
    lost_share += float(later_start_ups["share"].sum())
    lossy_uses = [(use, share) for use, share in shares.uses.items() if use != "kept"]
    unknown_text = (
        ""
        if shares.is_kept_known
        else " Each attempt numbers its steps from 0: if they resumed from a checkpoint, mark steps "
        "with tl.step(number), and more of them count as kept."
    )
    return Finding.of(
        "restarts",
        {
            "times": f"{shares.attempts} times",
            "wall": fmt.duration(shares.wall_ns),
            "kept": fmt.percent(shares.goodput),
            "uses": ", ".join(
                f"{fmt.percent(share)} {USES[use]}" for use, share in lossy_uses[:MAX_USES_NAMED]
            ),
            "unknown": unknown_text,
        },
        category="fault" if lost_share >= MIN_SHARE_LOST_IF_FAULT else "opportunity",
        saving=lost_share,
        evidence={"attempts": shares.attempts},
    )
