"""All kinds of run that a verdict must tell apart, each a function from a setting to a labelled run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.labelled import kinds_of_files as files
from benchmarks.labelled import kinds_of_network as network
from benchmarks.labelled import kinds_of_pipelines as pipelines
from benchmarks.labelled import kinds_of_ranks as ranks
from benchmarks.labelled import kinds_of_servers as on_servers
from benchmarks.labelled import kinds_of_streams as streams
from benchmarks.labelled import training
from benchmarks.labelled.clocks import HostClock, skewed
from benchmarks.labelled.label import Case, Label
from benchmarks.labelled.makers import averaging, synchronous, with_servers
from benchmarks.labelled.noise import STRENGTHS
from benchmarks.labelled.work import Work, draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.labelled.setting import Setting


@dataclass(frozen=True)
class Kind:
    """A kind of run; `asked` says that its verdict must be right in 95 of 100."""

    name: str
    make: Callable[[Setting], Case]
    asked: bool = True


def _stronger(**changes: float) -> Callable[[Setting], Work]:
    """Return a draw with other noise: `times` multiplies sigma, the rest replaces."""

    def base(setting: Setting) -> Work:
        strength = STRENGTHS[setting.family, setting.level]
        times = changes.get("times", 1.0)
        given = {name: value for name, value in changes.items() if name != "times"}
        return draw(setting, strength=replace(strength, sigma=strength.sigma * times, **given))

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


def _backlogged(setting: Setting) -> Work:
    """Draw a run that reduces for longer than it goes back: calls wait for the wire, not for ranks."""
    work = draw(setting, buckets=8)
    work.transfer *= 15
    return work


KINDS: Final = (
    Kind("healthy", synchronous(ranks.nothing)),
    Kind("healthy, noisy", synchronous(ranks.nothing, base=_stronger(times=2.5))),
    Kind("unequal devices", synchronous(ranks.nothing, base=_stronger(spread=0.02))),
    Kind("late start", synchronous(ranks.late_start)),
    Kind("compiling", synchronous(ranks.compiling)),
    Kind("OS noise", synchronous(ranks.nothing, base=_stronger(often=0.08, spike=0.3))),
    Kind("clocks hours apart", synchronous(ranks.nothing, _hours_apart)),
    Kind("repeated step numbers", files.epochs),
    Kind("PS healthy", with_servers(on_servers.nothing)),
    Kind("elastic healthy", averaging(lambda _setting, _work: Label())),
    Kind("persistent 3 %", synchronous(partial(ranks.persistent, by=0.03)), asked=False),
    Kind("persistent 10 %", synchronous(partial(ranks.persistent, by=0.10))),
    Kind("persistent 30 %", synchronous(partial(ranks.persistent, by=0.30))),
    Kind("transient", synchronous(ranks.transient)),
    Kind("intermittent", synchronous(ranks.intermittent)),
    Kind("uninstrumented delay", synchronous(ranks.uncovered)),
    Kind("speed change", synchronous(ranks.speed_change, base=_stronger(spread=0.02))),
    Kind("rotating", synchronous(ranks.rotating)),
    Kind("two ranks", synchronous(ranks.two_ranks)),
    Kind("slow host", synchronous(ranks.slow_host)),
    Kind("thermal ramp", synchronous(ranks.thermal)),
    Kind("loader stalls", synchronous(ranks.loader_stall)),
    Kind("slow loader", synchronous(ranks.slow_loader)),
    Kind("gc pauses, one rank", synchronous(ranks.gc_of_one)),
    Kind("straggler, skewed clocks", synchronous(partial(ranks.persistent, by=0.2), _far_apart)),
    Kind("straggler, clock jump", synchronous(partial(ranks.persistent, by=0.2), _jumping)),
    Kind(
        "straggler, backlog of reductions",
        synchronous(partial(ranks.persistent, by=0.2), base=_backlogged),
    ),
    Kind("PS slow worker", with_servers(on_servers.slow_worker)),
    Kind("all slow", synchronous(ranks.slow_all)),
    Kind("loader stall of all", synchronous(ranks.loader_stall_of_all)),
    Kind("gc pauses, all ranks", synchronous(ranks.gc_of_all)),
    Kind("sequence lengths", synchronous(ranks.sequence_lengths, fix=ranks.evened)),
    Kind("checkpoint on rank 0", synchronous(ranks.checkpoint)),
    Kind("slow link", synchronous(network.slow_link)),
    Kind("congestion", synchronous(network.congestion)),
    Kind("small messages", synchronous(network.small_messages, fix=network.fewer_messages)),
    Kind("no overlap", synchronous(network.no_overlap, base=_many_buckets)),
    Kind("communication-bound", synchronous(network.communication_bound, base=_many_buckets)),
    Kind("update gaps", synchronous(network.update_gap)),
    Kind("killed rank", files.killed),
    Kind("missing rank", files.missing),
    Kind("damaged file", files.damaged),
    Kind("world change", files.world_change),
    Kind("PS hot shard", with_servers(on_servers.hot, on_servers.even)),
    Kind("PS bound by a processor", with_servers(on_servers.cpu_bound)),
    Kind(
        "PS bound by the network",
        with_servers(on_servers.network_bound, on_servers.twice_the_bandwidth),
    ),
    Kind("PS incast", with_servers(on_servers.incast, on_servers.fair)),
    Kind("stale elastic worker", averaging(on_servers.stale)),
    Kind("link inside a host", synchronous(network.link_inside_a_host)),
    Kind(
        "equal small buckets", synchronous(network.equal_small_buckets, fix=network.fewer_messages)
    ),
    Kind(
        "PS incast with a receive phase", with_servers(on_servers.incast_at_once, on_servers.fair)
    ),
    Kind("pipeline healthy", pipelines.staged(ranks.nothing)),
    Kind("pipeline straggler", pipelines.staged(pipelines.straggler)),
    Kind(
        "pipeline straggler, one communicator",
        pipelines.staged(pipelines.straggler, by_stage=False),
    ),
    Kind("stage imbalance", pipelines.staged(pipelines.unequal_stages)),
    Kind("straggler, unequal stages", pipelines.staged(pipelines.straggler, pipelines.uneven)),
    Kind("streams healthy", streams.handed_over(synchronous(ranks.nothing))),
    Kind("streams straggler", streams.handed_over(synchronous(partial(ranks.persistent, by=0.2)))),
)
