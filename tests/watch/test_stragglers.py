"""Late ranks are named while the job runs, and once."""

from support.watch.late_ranks import MS, LateRanksJob, watch_steps

from tracelens.watch.stragglers import StragglerWatch


def test_rank_is_late_and_on_time_again() -> None:
    job, stragglers = LateRanksJob(ranks=3, seed=1), StragglerWatch()
    assert watch_steps(job, stragglers, 100) == []
    (alarm,) = watch_steps(job, stragglers, 60, straggler=2, lag_ns=15 * MS)
    assert (alarm.rank, alarm.is_over) == (2, False)
    assert 100 <= alarm.first_step < alarm.last_step <= 130
    assert 0.1 < alarm.lag < 0.25
    assert watch_steps(job, stragglers, 40, straggler=2, lag_ns=15 * MS) == []
    (resolved,) = watch_steps(job, stragglers, 150)
    assert (resolved.rank, resolved.is_over) == (2, True)


def test_healthy_ranks_are_never_late() -> None:
    for seed in range(5):
        assert watch_steps(LateRanksJob(ranks=4, seed=seed), StragglerWatch(), 500) == []


def test_other_ranks_begin_anew() -> None:
    job, stragglers = LateRanksJob(ranks=3, seed=2), StragglerWatch()
    watch_steps(job, stragglers, 60, straggler=1, lag_ns=20 * MS)
    del job.processes[2]
    assert watch_steps(job, stragglers, 60, straggler=1, lag_ns=20 * MS)[0].rank == 1


def test_rank_alone_is_never_late() -> None:
    assert watch_steps(LateRanksJob(ranks=1, seed=3), StragglerWatch(), 50) == []
