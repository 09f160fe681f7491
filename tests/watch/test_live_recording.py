"""A recording is followed while it grows: each record counts once, and open spans until they close."""

from pathlib import Path

from support.watch.commanded import commanded

from tracelens.watch.job import LiveJob
from tracelens.watch.watcher import Watcher


def test_steps_and_work_are_counted_once(tmp_path: Path) -> None:
    """However often it is looked at, and over more than one segment."""
    job = LiveJob(tmp_path)
    with commanded(tmp_path) as process:
        for first in range(0, 6000, 2000):
            numbers = f"range({first}, {first + 2000})"
            process.tell(
                f"for i in {numbers}: tl.step(i, 4).__enter__().__exit__(None, None, None)"
            )
            job.look()
            job.look()
        recording = job.ranks[0].recording
        assert recording is not None
        assert recording.step_count == 6000
        assert recording.steps[-1].number == 5999
        assert [amount for _, amount in recording.work["samples"]][-3:] == [4.0] * 3
    job.close()


def test_a_job_is_looked_at_in_full_only_if_a_rank_records_nothing(tmp_path: Path) -> None:
    """Whatever it records, also in the next segment."""
    watcher = Watcher(tmp_path)
    with commanded(tmp_path, 0, 2) as rank_0, commanded(tmp_path, 1, 2) as rank_1:
        watcher.look_if_needed()
        for count in (1, 1, 5000):  # more than a segment holds
            status = watcher.status
            for process in (rank_0, rank_1):
                process.tell(f"[work.begin().end() for _ in range({count})]")
            assert watcher.look_if_needed() == []
            assert watcher.status is status
            watcher.look()
        last_status = watcher.status
        rank_0.tell("work.begin().end()")
        watcher.look_if_needed()
        assert watcher.status is not last_status
    watcher.close()


def test_an_open_span_is_innermost_until_it_closes(tmp_path: Path) -> None:
    job = LiveJob(tmp_path)
    with commanded(tmp_path) as process:
        process.tell("step = tl.step(7).__enter__(); token = work.begin()")
        job.look()
        recording = job.ranks[0].recording
        assert recording is not None
        assert recording.innermost is not None
        assert (recording.innermost.name, recording.innermost.step) == ("work", 7)
        assert recording.open_step == 7
        process.tell("token.end(); other = work.begin(); other.discard()")
        job.look()
        assert recording.innermost.kind == "step"
        process.tell("step.__exit__(None, None, None)")
        job.look()
        assert recording.open_spans == []
        assert [step.number for step in recording.steps] == [7]
    job.close()


def test_a_span_closes_although_its_segment_was_removed(tmp_path: Path) -> None:
    """Full segments become Arrow; the memory of one stays as long as a span is open in it."""
    job = LiveJob(tmp_path)
    with commanded(tmp_path) as process:
        process.tell("token = work.begin()")
        job.look()
        for segment in tmp_path.glob("*/*.seg"):
            segment.unlink()
        recording = job.ranks[0].recording
        assert recording is not None
        assert len(recording.open_spans) == 1
        process.tell("token.end()")
        job.look()
        assert recording.open_spans == []
    job.close()


def test_calls_are_entered_and_completed(tmp_path: Path) -> None:
    job = LiveJob(tmp_path)
    with commanded(tmp_path, world=2) as process:
        process.tell("reduce.begin(seq=0, nbytes=8).end(); token = gather.begin(seq=1, nbytes=8)")
        job.look()
        recording = job.ranks[0].recording
        assert recording is not None
        (log,) = recording.call_logs.values()
        assert log.group.name == "world"
        assert log.last_entered is not None
        assert log.last_completed is not None
        assert (log.last_entered.seq, log.last_completed.seq) == (1, 0)
        process.tell("token.end()")
        job.look()
        assert log.last_completed.seq == 1
        assert not log.calls[1].is_open
    job.close()


def test_a_call_that_was_open_is_closed_after_many_others(tmp_path: Path) -> None:
    """As when the watch could not look for some seconds, or the program makes many calls a second."""
    job = LiveJob(tmp_path)
    with commanded(tmp_path, world=2) as process:
        process.tell("token = gather.begin(seq=0, nbytes=8)")
        job.look()
        process.tell(
            "token.end(); [reduce.begin(seq=i, nbytes=8).end() for i in range(1, 1000)]; "
            "token = gather.begin(seq=1000, nbytes=8)"
        )
        job.look()
        recording = job.ranks[0].recording
        assert recording is not None
        (log,) = recording.call_logs.values()
        assert (log.open_seqs, log.count) == ({1000}, 1001)
    job.close()


def test_all_calls_between_two_looks_are_compared(tmp_path: Path) -> None:
    """However many a program makes."""
    job = LiveJob(tmp_path)
    with commanded(tmp_path, world=2) as process:
        make_step = "[reduce.begin(seq=2 * i + k, nbytes=8).end() for k in (0, 1)]"
        for first in (0, 100, 200):
            process.tell(
                f"for i in range({first}, {first + 100}):"
                f" step = tl.step(i).__enter__(); {make_step}; step.__exit__(None, None, None)"
            )
        job.look()
        recording = job.ranks[0].recording
        assert recording is not None
        (calls,) = recording.ended_calls.values()
        assert calls.numbers.tolist() == [*range(600)]
        assert calls.steps.tolist() == [i // 2 for i in range(600)]
        assert recording.ended_steps.numbers.tolist() == [*range(300)]
        recording.forget_before(299)
        (calls,) = recording.ended_calls.values()
        assert calls.numbers.tolist() == [598, 599]
    job.close()


def test_a_late_watch_knows_what_is_open(tmp_path: Path) -> None:
    """It begins after the span, and after more records than a segment holds."""
    with commanded(tmp_path) as process:
        process.tell("token = save.begin(); [work.begin().end() for _ in range(10_000)]")
        job = LiveJob(tmp_path)
        job.look()
        recording = job.ranks[0].recording
        assert recording is not None
        assert [span.name for span in recording.open_spans] == ["save"]
        job.close()


def test_the_newest_process_of_a_rank_counts(tmp_path: Path) -> None:
    """A rank is started again into the same folder; the first one was killed."""
    job = LiveJob(tmp_path)
    with commanded(tmp_path) as killed:
        job.look()
    with commanded(tmp_path) as restarted:
        job.look()
        assert job.ranks[0].process.pid == restarted.process.pid
        assert job.all_processes[0].state == "gone"
        assert len(job.all_processes) == 2
        states = [job.is_over]
        assert restarted.end() == 0
        job.look()
        assert [*states, job.is_over] == [False, True]
        assert job.ranks[0].is_complete
    assert killed.process.returncode != 0
    job.close()


def test_what_ended_before_is_known_by_its_file(tmp_path: Path) -> None:
    with commanded(tmp_path) as process:
        process.tell("for i in range(5): tl.step(i).__enter__().__exit__(None, None, None)")
        assert process.end() == 0
    job = LiveJob(tmp_path)
    job.look()
    assert (job.ranks[0].is_over, job.ranks[0].is_complete, job.ranks[0].step_count) == (
        True,
        True,
        5,
    )


def test_an_exception_is_told(tmp_path: Path) -> None:
    job = LiveJob(tmp_path)
    with commanded(tmp_path) as process:
        process.tell("step = tl.step(3).__enter__(); token = work.begin(); token.end(failed=True)")
        process.tell("step.__exit__(ValueError, None, None)")
        job.look()
        recording = job.ranks[0].recording
        assert recording is not None
        assert recording.exception is not None
        assert (recording.exception.name, recording.exception.step) == ("work", 3)
        assert recording.step_count == 0
    job.close()
