"""The one table of the kinds of finding: `KINDS`.

A kind is added by the analysis that reports it and by one entry here. All else that depends on the
kind is in its entry: its title, the sentence that an analysis fills in (`Finding.of`), and which
other findings explain the same loss. docs/report.schema.json is written from the table
(`python -m tracelens.reports.schema`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from tracelens.model.finding_entries import FindingKind, Suppression

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KINDS"]

_OF_SERVERS: Final = ("ps_hot_shard", "ps_cpu_bound", "ps_network_bound", "ps_incast")

_STRAGGLER: Final = (
    "{who} {course}, {steps}: +{extra} per step ({share} of the median step of {step}); {waiting}. "
    "Fixing {it} would shorten the job by {saving}{absorbed}."
)
_ALL_SLOW: Final = (
    "{ranks} are slow in {phase} at the same time, {steps}: +{extra} per slow step ({share} "
    "of the median step of {step}), so no single rank is the cause. Fixing it would shorten the "
    "job by {saving}."
)
_SINGLE_STEPS: Final = {
    "in turn": (
        "{who} are late in {phase}, each at another time: in {when} some rank takes {extra} longer than "
        "usual, and the others wait for it. Without that the job would be shorter by up to {saving}."
    ),
    "at once": (
        "{who} {is} late in {phase} in {when}, by {extra}, and the others wait for it. Without "
        "that the job would be shorter by up to {saving}."
    ),
}
_PS_SLOWER: Final = (
    "{who} {bound}-bound ({part} busy {busy} of {window} time), {ratio}x as long per byte as on "
    "the other shards. At their speed the job would be shorter by {saving}."
)
_PS_ALIKE: Final = (
    "{who} {bound}-bound ({part} busy {busy} of {window} time). With {more}, or twice the shards, "
    "the job would be shorter by up to {saving}."
)

_NOT_PRICED: Final = "What fixing it would save is not known: {refusal}."


def _without_price(sentence: str) -> str:
    """Replace the last sentence, on the saving, by the reason why the saving is not known."""
    return f"{sentence[: sentence.rindex('. ')]}. {_NOT_PRICED}"


_BOUND: Final = "{bound}-bound"  # a part that is not at work all the time is so at times
_PS_PRICED: Final = {
    "slower": _PS_SLOWER,
    "slower at times": _PS_SLOWER.replace(_BOUND, f"{_BOUND} at times"),
    "at times": _PS_ALIKE.replace(_BOUND, f"{_BOUND} at times"),
}


_PS_CASES: Final = _PS_PRICED | {
    f"{case} not priced".strip(): _without_price(sentence)
    for case, sentence in {"": _PS_ALIKE, **_PS_PRICED}.items()
}
_INCAST: Final = (
    "{who} {usual} while about {pushes} pushes share the link, and {best}: incast. "
    "Staggering pushes, or aggregating them on the way, would shorten the job by {saving}."
)
_at_servers: Final = partial(FindingKind, group="servers")
_bound_servers: Final = partial(
    _at_servers, needs_all_ranks=True, sentence=_PS_ALIKE, cases=_PS_CASES
)


def _by_kind(*entries: FindingKind) -> dict[str, FindingKind]:
    return {entry.kind: entry for entry in entries}


KINDS: Final[Mapping[str, FindingKind]] = _by_kind(
    FindingKind(
        kind="straggler",
        title="Straggler",
        group="ranks",
        suppression=Suppression(kinds=("stale_worker",)),
        action="Look at what these ranks do in that phase, or move them to another host.",
        sentence=_STRAGGLER,
        cases=_SINGLE_STEPS,
    ),
    FindingKind(
        kind="slow_host",
        title="Slow host",
        group="ranks",
        names_hosts=True,
        action="Take the host out of the job, or look for other load, heat and power limits on it.",
        sentence=_STRAGGLER,
    ),
    FindingKind(
        kind="slow_all",
        title="All ranks slow",
        group="whole job",
        worst_step_category="forward",
        action="Look for what all ranks share at that time: storage, power, a change of inputs.",
        sentence=(
            "{ranks} compute more slowly {when}, {steps}: +{extra} per step ({share} of "
            "the median step of {step}, most of it in {phase}), so no single rank is the cause: "
            "{cause}. Fixing it would shorten the job by {saving}."
        ),
        cases={"phase": _ALL_SLOW},
    ),
    FindingKind(
        kind="slow_link",
        title="Slow link",
        group="network",
        category="fault",
        action=(
            "Run a bandwidth test between these ranks; check cable, switch port and routing, or, "
            "inside a host, slots and peer access."
        ),
        sentence=(
            "{who} slow, {steps}: a message takes {message}, {ratio}x what the same bytes take on "
            "other links, not counting the wait for late ranks. Collectives are as slow as their "
            "slowest link: fixing it would shorten the job by {saving}."
        ),
    ),
    FindingKind(
        kind="congestion",
        title="Network congestion",
        group="network",
        category="fault",
        worst_step_category="transfer",
        action="Look for other traffic on the network in that time.",
        sentence=(
            "Transfers are slow for {who}, {steps}: they take {ratio}x as long as in the other "
            "steps for the same bytes, while compute time does not change; {link}. Fixing it would "
            "shorten the job by {saving}."
        ),
    ),
    FindingKind(
        kind="load_imbalance",
        title="Load imbalance",
        group="ranks",
        category="opportunity",
        worst_step_category="wait",
        suppression=Suppression(
            kinds=("straggler", "slow_host", "gc_stall", "checkpoint_stall"),
            min_share=0.5,
            is_summed=True,
        ),
        action="Give ranks equal work: sort or bucket samples by length, or share by tokens.",
        sentence=(
            "In every step some rank computes {excess} of the median step longer than most, each time "
            "another one: {why}; balancing it would shorten the job by up to {saving}."
        ),
    ),
    FindingKind(
        kind="stage_imbalance",
        title="Stage imbalance",
        group="ranks",
        category="opportunity",
        worst_step_category="wait",
        needs_all_ranks=True,
        action="Move layers from the longest stage to others, or give it more ranks.",
        sentence=(
            "Stage {stage} of {stages} ({ranks}) computes {own} per step, the mean stage {mean}: the "
            "others wait for it in every step. With as much work for each stage the job would be "
            "shorter by up to {saving}."
        ),
    ),
    _at_servers(
        kind="ps_hot_shard",
        title="Hot shard",
        category="fault",
        action="Place variables by bytes, or split the largest one over shards.",
        sentence=(
            "PS shard {shard} moves {ratio}x the mean bytes ({share} of all; {shards} shards, "
            "effective shards: {effective}), and workers spend {exposed} of the time in push/pull."
        ),
    ),
    _bound_servers(
        kind="ps_cpu_bound",
        title="CPU-bound shards",
        action="Add shards, or cores to each shard.",
    ),
    _bound_servers(
        kind="ps_network_bound",
        title="Network-bound shards",
        action="Add shards, or send less: compress or aggregate gradients.",
    ),
    _at_servers(
        kind="ps_incast",
        title="Incast",
        category="fault",
        needs_all_ranks=True,
        action="Stagger the pushes, or aggregate them on the way.",
        sentence=_INCAST,
        cases={"not priced": _without_price(_INCAST)},
    ),
    _at_servers(
        kind="ps_uninstrumented",
        title="Uninstrumented shards",
        category="opportunity",
        needs_all_ranks=True,
        action=(
            "Record the shards with --sample, or wrap what they do beside requests in spans "
            "(tl.span); see that their threads have cores to run on."
        ),
        sentence=(
            "{who} requests for {held} of the workers' time, and no span covers what {they} in it. "
            "Served as they come, they could shorten the job by up to {saving}."
        ),
    ),
    FindingKind(
        kind="small_messages",
        title="Small messages",
        group="network",
        category="opportunity",
        worst_step_category="transfer",
        action="Fuse them: into larger buckets, or the variables of a PS shard into one message.",
        sentence=(
            "A step sends {calls} of {size} on average, latency-bound: {latency} per call "
            "independent of size, {share} of the transfer. Fused into {messages} per step, they "
            "would shorten the job by up to {saving}."
        ),
    ),
    FindingKind(
        kind="exposed_communication",
        title="Exposed communication",
        group="overlap",
        category="opportunity",
        worst_step_category="transfer",
        suppression=Suppression(
            kinds=(
                "slow_link",
                "congestion",
                "small_messages",
                "repeated_reductions",
                *_OF_SERVERS,
            ),
            min_share=0.5,
        ),
        action=(
            "Communicate while ranks compute (reductions, or pushes, during backprop); for the rest, "
            "see if calls or bytes take the time."
        ),
        sentence=(
            "Exposed communication takes {exposed} of the time, and {overlap} of all communication "
            "overlaps with compute: started while backprop still runs, it could shorten the job by "
            "up to {saving}."
        ),
        cases={
            "bound": (
                "Exposed communication takes {exposed} of the time, and little of it could start "
                "earlier: {remedy} could shorten the job by up to {saving}.{link}"
            ),
            "turns": (
                "Workers spend {share} of the time waiting for their turn, serialized at the "
                "server: served as they arrive, or all at once, they could shorten the job by up "
                "to {saving}."
            ),
        },
    ),
    FindingKind(
        kind="repeated_reductions",
        title="Repeated reductions",
        group="overlap",
        category="opportunity",
        worst_step_category="transfer",
        action=(
            "Reduce gradients once for each update: run all micro-batches but the last under "
            "no_sync() (DDP), or without gradient synchronization (FSDP)."
        ),
        sentence=(
            "There are {passes} passes of backprop for each optimizer update, and each of them "
            "reduces gradients ({calls}). Reduced after the last one only, the job would be shorter "
            "by up to {saving}."
        ),
    ),
    FindingKind(
        kind="update_gap",
        title="Gaps between optimizer updates",
        group="overlap",
        category="opportunity",
        action="Move host code out of the gaps, or update all weights in one call.",
        sentence=(
            "Median gap between the optimizer updates of a step {median} (p90 {long}). Without "
            "the host code in these gaps the job would be shorter by up to {saving}."
        ),
    ),
    FindingKind(
        kind="data_stall",
        title="Data stall",
        group="ranks",
        worst_step_category="data",
        action="Load ahead: more workers and prefetching, or faster storage.",
        sentence=(
            "Every rank spends {share} of each step on data loading. Prefetched while the previous "
            "step computes, it would shorten the job by up to {saving}."
        ),
        cases={"phase": _ALL_SLOW, **_SINGLE_STEPS},
    ),
    FindingKind(
        kind="checkpoint_stall",
        title="Checkpoint stall",
        group="overlap",
        worst_step_category="checkpoint",
        action="Write checkpoints in the background, or less often.",
        sentence=_STRAGGLER,
        cases={"phase": _ALL_SLOW, **_SINGLE_STEPS},
    ),
    FindingKind(
        kind="gc_stall",
        title="GC stall",
        group="ranks",
        worst_step_category="gc",
        action="Collect at the same steps on all ranks (gc.freeze, gc.disable and gc.collect).",
        sentence=_STRAGGLER,
        cases={
            "phase": _ALL_SLOW,
            **_SINGLE_STEPS,
        },
    ),
    FindingKind(
        kind="clock_jump",
        title="Clock jump",
        group="trace",
        category="opportunity",
        needs_all_ranks=True,
        action=(
            "Look for what paused or moved that host (suspend, migration), or, where times are a "
            "wall clock's, what set it."
        ),
        sentence=(
            "The clock of host {host} jumped during the run ({jumps}x); times are corrected for it."
        ),
    ),
    FindingKind(
        kind="desync",
        ends_job=True,
        title="Collective mismatch",
        group="trace",
        category="fault",
        action="Make all ranks call the same collectives in the same order.",
        sentence="{note}",
    ),
    FindingKind(
        kind="hang",
        ends_job=True,
        title="Hang",
        group="trace",
        category="fault",
        action="Look at what this rank did instead of the call that the others are in.",
        sentence=(
            "Rank {rank} completed its recording, but {blocked}: ranks do not make the same calls."
        ),
        cases={
            "snapshot": "{ranks} did not enter {call}, in which {waiting}.",
            "no call": "{ranks} entered nothing, as dumps show no call, and {waiting} in {call}.",
            "no dump": "{ranks} left no dump, and {waiting} in {call}.",
            "circle": "In a circle {ranks} wait for each other: {calls}.",
            "call": (
                "All known ranks entered {call}, and it did not end on {ranks}: another rank is "
                "missing, or the network or a device failed."
            ),
            "ended": (
                "{ranks} did not enter {call}, in which {waiting} for {silence} until the job was ended "
                "({cause}){frame}."
            ),
            "unrecorded": (
                "{ranks} recorded nothing at all, and {waiting} in {call} for {silence}{end}: look at "
                "what runs before the first step."
            ),
            "silent": (
                "{ranks} recorded nothing for {silence} until the job was ended ({cause}){frame}."
            ),
            "running": (
                "{ranks} has not entered {call}, in which {waiting}, for {silence}: the job "
                "hangs{frame}."
            ),
        },
    ),
    FindingKind(
        kind="crash",
        ends_job=True,
        title="Crash",
        group="trace",
        category="fault",
        action="Look at this rank first: what the other ranks report follows from it.",
        sentence="{who} failed first{where}: {cause}{others}.",
        cases={
            "left": (
                "{who} ended by itself{where} and noted no error; {others} ended after it ({causes})."
            ),
            "all": "All {count} ranks failed alike{where}: {cause}.",
            "start": "Attempt {attempt} failed before its first step: {failure}.",
        },
    ),
    FindingKind(
        kind="ended_from_outside",
        title="Ended from outside",
        group="trace",
        category="opportunity",
        action="If it was not ended on purpose, look into the logs of the scheduler.",
        sentence=(
            "All ranks were ended by {cause}{where}: by a user, a scheduler or the launcher, not by a "
            "failure of their own."
        ),
    ),
    FindingKind(
        kind="restarts",
        title="Restarts",
        group="whole job",
        action="Look at why attempts failed, and save checkpoints as often as they pay.",
        sentence=(
            "The job was started {times} in {wall}; {failure}. Steps that were kept took {kept} of this "
            "time; {uses}.{unknown}"
        ),
    ),
    FindingKind(
        kind="missing_rank",
        title="Missing rank",
        group="trace",
        category="fault",
        action="Add the files of the missing ranks, or record them too.",
        sentence=(
            "No trace of {ranks} (of {expected}): wait times and all shares are those of the ranks "
            "that are present."
        ),
        cases={
            "snapshot": "No dump of {ranks} (of {expected}): which calls they entered is not known."
        },
    ),
    FindingKind(
        kind="truncated_trace",
        title="Truncated trace",
        group="trace",
        category="fault",
        action="Look into the logs of that rank: killed, crashed, or out of memory.",
        sentence="{who}'s recording ends abruptly{where}: killed or crashed{elsewhere}{after}.",
        cases={
            "damaged": (
                "The file of {who} is damaged or truncated: what happened after its first {events} "
                "events is unknown, and waits for it are lower bounds."
            )
        },
    ),
    FindingKind(
        kind="dropped_events",
        title="Dropped events",
        group="trace",
        action="Record less (--detail, --keep), or give more room.",
        sentence="{lost} events were dropped ({reasons}): times there are lower bounds.",
    ),
    FindingKind(
        kind="world_change",
        title="World size change",
        group="trace",
        category="fault",
        action="Look at why ranks left; restart with all of them.",
        sentence=(
            "The job's ranks changed while it ran: {changes}. Ranks are compared only in steps "
            "that they share, and the time that joining and leaving took is outside steps."
        ),
    ),
    FindingKind(
        kind="uneven_inputs",
        title="Uneven inputs",
        group="trace",
        category="fault",
        action=(
            "Give all ranks equally many batches (drop_last=True, DistributedSampler), or, with uneven "
            "inputs, train within Join (torch.distributed.algorithms.join)."
        ),
        sentence=(
            "{who} ended training after step {last}, the others after step {end}: ranks had unequal "
            "numbers of batches.{join} Ranks are compared only in the steps that they share."
        ),
    ),
    FindingKind(
        kind="stale_worker",
        title="Stale worker",
        group="servers",
        category="fault",
        needs_all_ranks=True,
        action="Give this worker as fast a machine as the others, or bound the staleness.",
        sentence=(
            "Updates of rank {rank} are {staleness} versions stale when they are applied, those of "
            "the others {others}: it makes {rate}x the mean number of updates{why}. No rank waits "
            "for it{cost}, but its steps start from outdated weights."
        ),
    ),
)
