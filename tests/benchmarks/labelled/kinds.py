"""All kinds of run that a verdict must tell apart, each a function from a setting to a labelled run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
from benchmarks.labelled import elastic, servers, told, told_by_servers, training
from benchmarks.labelled import kinds_of_network as network
from benchmarks.labelled import kinds_of_ranks as ranks
from benchmarks.labelled import kinds_of_servers as on_servers
from benchmarks.labelled.clocks import HostClock, skewed
from benchmarks.labelled.label import Case, Label, Seen
from benchmarks.labelled.noise import STRENGTHS
from benchmarks.labelled.recording import cut
from benchmarks.labelled.work import Work, draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.labelled.setting import Setting

    Plant = Callable[[Setting, Work], Label]
    Clocks = Callable[[Setting], list[HostClock]]


@dataclass(frozen=True)
class Kind:
    """A kind of run; `asked` says that its verdict must be right in 95 of 100."""

    name: str
    make: Callable[[Setting], Case]
    asked: bool = True


def _synchronous(
    plant: Plant,
    clocks: Clocks = skewed,
    base: Callable[[Setting], Work] = draw,
) -> Callable[[Setting], Case]:
    """Make an allreduce training with and without what is planted."""

    def make(setting: Setting) -> Case:
        healthy = base(setting)
        planted = healthy.copied()
        label = plant(setting, planted)
        played, own = training.play(planted), training.play(healthy)
        if label.saving is None and label.verdict != "none":
            label = replace(label, saving=1 - own.job_ns / played.job_ns)
        hosts = clocks(setting)
        shown = np.stack(
            [
                hosts[rank // setting.per_host].shows(played.enter[:, rank, -1])
                for rank in range(setting.ranks)
            ],
            axis=1,
        )
        recording = told.tell(setting, planted, played, hosts)
        return Case(recording, label, Seen(planted.phases, shown))

    return make


def _stronger(**changes: float) -> Callable[[Setting], Work]:
    """Return a draw with other noise: `times` multiplies sigma, the rest replaces."""

    def base(setting: Setting) -> Work:
        usual = STRENGTHS[setting.family, setting.level]
        times = changes.get("times", 1.0)
        given = {name: value for name, value in changes.items() if name != "times"}
        return draw(setting, strength=replace(usual, sigma=usual.sigma * times, **given))

    return base


def _hours_apart(setting: Setting) -> list[HostClock]:
    return skewed(setting, offset_ms=3_600_000.0, drift_ppm=50.0)


def _far_apart(setting: Setting) -> list[HostClock]:
    return skewed(setting, offset_ms=50.0)


def _jumping(setting: Setting) -> list[HostClock]:
    """Let one host's clock be set during the run."""
    clocks = skewed(setting)
    draw = setting.stream("jump")
    host = int(draw.integers(1, setting.hosts))
    length = setting.steps * 105 * training.MS
    at = training.ORIGIN_NS + int(length * draw.uniform(0.3, 0.7))
    clocks[host] = replace(
        clocks[host], jump_ns=int(draw.choice([-3, 3])) * 1_000_000, jump_at_ns=at
    )
    return clocks


def _many_buckets(setting: Setting) -> Work:
    """Draw a run that reduces 30 ms in 4 buckets."""
    work = draw(setting, buckets=4)
    work.transfer *= 5
    return work


def _epochs(setting: Setting) -> Case:
    """Number steps anew in each epoch."""
    case = _synchronous(ranks.nothing)(setting)
    length = setting.steps // 2
    numbered = case.recording.events.with_columns(
        step=pl.when(pl.col("step") >= 0).then(pl.col("step") % length).otherwise("step")
    )
    return replace(case, recording=replace(case.recording, events=numbered))


def _killed(setting: Setting) -> Case:
    """Kill one rank within a step; the others are stuck and killed soon after."""
    case = _synchronous(ranks.nothing)(setting)
    rank = ranks.pick(setting)[0]
    step = int(setting.steps * setting.stream("when").uniform(0.3, 0.9))
    events = case.recording.events
    own = events.filter((pl.col("process") == rank) & (pl.col("step") == step))
    at = own.filter(pl.col("kind") == "backprop")["start_ns"][0] + 1_000_000
    collective = pl.col("kind").is_in(["reduction"]) & (pl.col("step") == step)
    stuck = events.filter(collective)["end_ns"].min()
    assert isinstance(stuck, int)
    ends = np.full(setting.ranks, stuck - 1)
    ends[rank] = at
    events = cut(events, ends)
    members = tuple(replace(member, complete=False) for member in case.recording.members)
    recording = replace(case.recording, events=events, members=members)
    label = Label("truncated_trace", ranks=(rank,), steps=(step, step))
    return Case(recording, label, through_files=setting.ranks <= 64)


def _missing(setting: Setting) -> Case:
    """Lose one rank's file."""
    case = _synchronous(ranks.nothing)(setting)
    rank = ranks.pick(setting)[0]
    return Case(case.recording.without(rank), Label("missing_rank", ranks=(rank,)))


def _damaged(setting: Setting) -> Case:
    """Cut off the end of one rank's file."""
    case = _synchronous(ranks.nothing)(setting)
    rank = ranks.pick(setting)[0]
    label = Label("truncated_trace", ranks=(rank,))
    return Case(case.recording, label, damaged=rank, through_files=True)


def _with_servers(plant: Callable[[Setting, servers.Servers], Label]) -> Callable[[Setting], Case]:
    """Make a training with parameter servers, each on a host of its own."""

    def make(setting: Setting) -> Case:
        healthy = servers.draw(setting)
        planted = healthy.copied()
        label = plant(setting, planted)
        played = servers.play(planted)
        if label.verdict != "none":
            label = replace(label, saving=1 - servers.play(healthy).job_ns / played.job_ns)
        clocks = [*skewed(setting), *(HostClock() for _ in range(servers.SHARDS))]
        return Case(told_by_servers.tell(setting, planted, played, clocks), label)

    return make


def _elastic(plant: Callable[[Setting, elastic.Elastic], Label]) -> Callable[[Setting], Case]:
    """Make an elastic averaging run; its master has a host of its own."""

    def make(setting: Setting) -> Case:
        planted = elastic.draw(setting)
        label = plant(setting, planted)
        clocks = [*skewed(setting), HostClock()]
        return Case(elastic.tell(setting, elastic.play(planted), clocks), label)

    return make


KINDS: Final = (
    Kind("healthy", _synchronous(ranks.nothing)),
    Kind("healthy, noisy", _synchronous(ranks.nothing, base=_stronger(times=2.5))),
    Kind("unequal devices", _synchronous(ranks.nothing, base=_stronger(spread=0.02))),
    Kind("late start", _synchronous(ranks.late_start)),
    Kind("compiling", _synchronous(ranks.compiling)),
    Kind("OS noise", _synchronous(ranks.nothing, base=_stronger(often=0.08, spike=0.3))),
    Kind("clocks hours apart", _synchronous(ranks.nothing, _hours_apart)),
    Kind("repeated step numbers", _epochs),
    Kind("PS healthy", _with_servers(lambda _setting, _work: Label())),
    Kind("elastic healthy", _elastic(lambda _setting, _work: Label())),
    Kind("persistent 3 %", _synchronous(partial(ranks.persistent, by=0.03)), asked=False),
    Kind("persistent 10 %", _synchronous(partial(ranks.persistent, by=0.10))),
    Kind("persistent 30 %", _synchronous(partial(ranks.persistent, by=0.30))),
    Kind("transient", _synchronous(ranks.transient)),
    Kind("speed change", _synchronous(ranks.speed_change, base=_stronger(spread=0.02))),
    Kind("rotating", _synchronous(ranks.rotating)),
    Kind("two ranks", _synchronous(ranks.two_ranks)),
    Kind("slow host", _synchronous(ranks.slow_host)),
    Kind("thermal ramp", _synchronous(ranks.thermal)),
    Kind("loader stalls", _synchronous(ranks.loader_stall)),
    Kind("slow loader", _synchronous(ranks.slow_loader)),
    Kind("gc pauses, one rank", _synchronous(ranks.gc_of_one)),
    Kind("straggler, skewed clocks", _synchronous(partial(ranks.persistent, by=0.2), _far_apart)),
    Kind("straggler, clock jump", _synchronous(partial(ranks.persistent, by=0.2), _jumping)),
    Kind("PS slow worker", _with_servers(on_servers.slow_worker)),
    Kind("all slow", _synchronous(ranks.slow_all)),
    Kind("loader stall of all", _synchronous(ranks.loader_stall_of_all)),
    Kind("gc pauses, all ranks", _synchronous(ranks.gc_of_all)),
    Kind("sequence lengths", _synchronous(ranks.sequence_lengths)),
    Kind("checkpoint on rank 0", _synchronous(ranks.checkpoint)),
    Kind("slow link", _synchronous(network.slow_link)),
    Kind("congestion", _synchronous(network.congestion)),
    Kind("small messages", _synchronous(network.small_messages)),
    Kind("no overlap", _synchronous(network.no_overlap, base=_many_buckets)),
    Kind("communication-bound", _synchronous(network.communication_bound, base=_many_buckets)),
    Kind("update gaps", _synchronous(network.update_gap)),
    Kind("killed rank", _killed),
    Kind("missing rank", _missing),
    Kind("damaged file", _damaged),
    Kind("PS hot shard", _with_servers(on_servers.hot)),
    Kind("PS bound by a processor", _with_servers(on_servers.cpu_bound)),
    Kind("PS bound by the network", _with_servers(on_servers.network_bound)),
    Kind("PS incast", _with_servers(on_servers.incast)),
    Kind("stale elastic worker", _elastic(on_servers.stale)),
)
