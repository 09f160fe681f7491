"""The life of a job: attempts, failures, and what became of the wall time (docs/life.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracelens.accounting.life.ledger import ATTEMPT_COLUMNS, LIFE_COLUMNS, name_uses
from tracelens.model import fmt
from tracelens.model.display import DisplayMixin
from tracelens.model.findings import Finding
from tracelens.model.result import LifeShares

if TYPE_CHECKING:
    from tracelens.accounting.life.ledger import LifeLedger
    from tracelens.facts import Facts

# of the wall time: restarts that cost more than this are a fault, others an opportunity [policy]
MIN_SHARE_LOST_IF_FAULT: Final = 0.05
MAX_USES_NAMED: Final = 4  # uses: the sentence names no more [policy]
MAX_LATER_FAILURES: Final = 3  # attempts: the finding tells of no more after the first [policy]
# What a job loses because it was started again; all but the first start-up counts.
_OF_RESTARTS: Final = ("repeated", "failed_step", "hanging", "dead")


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
    shares = sum_shares(life)
    has_failed = bool(life.attempts["failure"][:-1].count())
    findings = (_report_restarts(life, shares),) if has_failed else ()
    return Life(life.attempts, life.uses, shares, findings)


def sum_shares(life: LifeLedger) -> LifeShares:
    """Sum up the uses of all attempts."""
    sums = (
        life.uses.group_by("use").agg(pl.col("share").sum()).sort("share", "use", descending=True)
    )
    return LifeShares(
        life.wall_ns,
        attempts=life.attempts.height,
        goodput=life.goodput,
        uses=dict(sums.iter_rows()),
        is_kept_known=life.is_kept_known,
        failure=next(reversed(life.attempts["failure"].drop_nulls().to_list()), None),
        worlds=tuple(life.attempts["world"]),
    )


def _report_restarts(life: LifeLedger, shares: LifeShares) -> Finding:
    """Report that the job was started again, and what that cost."""
    later_start_ups = life.uses.filter((pl.col("use") == "start_up") & (pl.col("attempt") > 1))
    lost_share = sum(shares.uses.get(use, 0.0) for use in _OF_RESTARTS)
    lost_share += float(later_start_ups["share"].sum())
    unknown_text = (
        ""
        if shares.is_kept_known
        else " Each attempt numbers its steps from 0: if they resumed from a checkpoint, mark steps "
        "with tl.step(number), and more of them count as kept."
    )
    failures = {
        str(number): failure
        for number, failure in life.attempts.select("attempt", "failure").iter_rows()
        if failure
    }
    first_failure, *later_failures = [f"in attempt {n} {text}" for n, text in failures.items()]
    uses = name_uses(shares.uses, is_kept_known=shares.is_kept_known)
    return Finding.of(
        "restarts",
        {
            "times": f"{shares.attempts} times",
            "wall": fmt.duration(shares.wall_ns),
            "failure": first_failure,
            "kept": f"{'' if shares.is_kept_known else 'at least '}{fmt.percent(shares.goodput)}",
            "uses": ", ".join(uses[:MAX_USES_NAMED]),
            "unknown": unknown_text,
        },
        more=[fmt.capital(f"{text}.") for text in later_failures[:MAX_LATER_FAILURES]],
        category="fault" if lost_share >= MIN_SHARE_LOST_IF_FAULT else "opportunity",
        saving=lost_share,
        evidence={"attempts": shares.attempts, "failures": failures, "worlds": list(shares.worlds)},
    )
