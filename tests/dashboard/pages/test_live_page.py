"""The page Live shows what a watch sees: a run that is over, ranks, and who holds up the others."""

import json
from pathlib import Path
from typing import Any

import pytest
from plotly.utils import PlotlyJSONEncoder

from tracelens.watch.stalls import Stall
from tracelens.watch.status import CommunicatorStatus, JobStatus, RankStatus
from tracelens.watch.watcher import News
from tracelens_dashboard.pages import live_job as page
from tracelens_dashboard.runs.watched import JobView, WatchedJobs

SECOND = 10**9


def _rank(rank: int, *, is_over: bool = False) -> RankStatus:
    return RankStatus(
        rank=rank,
        host="node",
        pid=100 + rank,
        state="sleeping",
        is_over=is_over,
        step=59,
        step_count=60,
        steps_per_s=17.0,
        samples_per_s=None,
        tokens_per_s=None,
        span=("reduction", "bucket 2"),
        span_since_ns=90 * SECOND,
        delay_ns=None,
        communicators=(CommunicatorStatus("world", ("allreduce", 65), ("allreduce", 64)),),
    )


def _status(*ranks: RankStatus) -> JobStatus:
    return JobStatus(
        at_ns=100 * SECOND,
        world=len(ranks),
        ranks=ranks,
        steps_per_s=17.0,
        usual_steps_per_s=(16.0, 18.0),
        samples_per_s=None,
        tokens_per_s=None,
    )


def _texts(components: Any) -> str:
    return json.dumps(components, cls=PlotlyJSONEncoder)


def test_a_job_that_runs_has_its_pace_and_a_row_for_each_rank() -> None:
    shown = _texts(page.draw(JobView(_status(_rank(0), _rank(1)), None, ())))
    assert "17 steps/s (usual 16 to 18)" in shown
    assert shown.count('"allreduce 65"') == 2
    assert '"10.0 s"' in shown  # since when it is in the span
    assert "culprit" not in shown


STALL = Stall(
    since_ns=90 * SECOND,
    found_ns=95 * SECOND,
    culprits=(1,),
    waiting=(0,),
    call=None,
    communicator=None,
    pause="step",
    limit_ns=5 * SECOND,
    reason="",
)


def test_a_stall_is_red_with_its_message_and_the_rank_it_waits_for() -> None:
    news = News("stalled", "STALLED for 5 s: rank 0 waits for rank 1", {})
    view = JobView(_status(_rank(0), _rank(1)), STALL, ((0.0, news),))
    shown = _texts(page.draw(view))
    assert shown.count('"culprit"') == 1
    assert shown.count("alarm") == 2
    assert "STALLED for 5 s: rank 0 waits for rank 1" in shown
    assert "Stalled for 10.0 s: rank 1 makes others wait. 2 of 2 ranks" in shown


@pytest.mark.parametrize("status", [None, _status(_rank(0, is_over=True))])
def test_a_run_that_is_over_is_said_to_be(status: JobStatus | None) -> None:
    assert page.NOT_LIVE in _texts(page.draw(JobView(status, None, ())))


def test_a_stall_that_the_end_of_the_job_left_is_not_shown_as_one() -> None:
    shown = _texts(page.draw(JobView(_status(_rank(1, is_over=True)), STALL, ())))
    assert page.NOT_LIVE in shown
    assert "alarm" not in shown
    assert "culprit" not in shown


def test_a_folder_is_looked_at_once_a_second_however_many_pages_ask(tmp_path: Path) -> None:
    jobs = WatchedJobs()
    first = jobs.look(tmp_path)
    assert jobs.look(tmp_path).status is first.status
    jobs.close()
    assert not list(tmp_path.iterdir())
