"""What a standstill is due to, from dumps of the Flight Recorder: one root, and nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.flight_dumps import call, unfinished_entry, write_as_json, write_dumps

import tracelens as tl

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens.model.findings import Finding
    from tracelens.model.result import Report

EXPERT = ("7", "undefined")
PIPE = ("8", "undefined")


def report_of(folder: Path) -> Report:
    return tl.analyze(tl.open(folder))


def culprits(report: Report) -> list[tuple[str, tuple[int, ...]]]:
    return [
        (f.kind, f.ranks) for f in report.findings if f.kind in {"hang", "desync", "missing_rank"}
    ]


def first_finding(report: Report) -> Finding:
    return report.findings[0]


def test_uneven_all_to_all_is_no_mismatch(tmp_path: Path) -> None:
    """Each rank sends the experts as much as it has; rank 2 never comes to the second exchange."""
    sizes = (10, 70, 30, 20)
    ranks: list[list[Any]] = [[call(1, "nccl:all_to_all", size)] for size in sizes]
    for rank in (0, 1, 3):
        ranks[rank].append(unfinished_entry(2, "nccl:all_to_all", 5 + sizes[rank]))
    report = report_of(write_dumps(tmp_path, ranks))
    assert culprits(report) == [("hang", (2,))]
    assert report.verdict.headline == "HANG rank 2 \N{MIDDLE DOT} critical"


def test_the_root_of_a_gather_or_a_scatter_has_more(tmp_path: Path) -> None:
    """Its output of the one, and its input of the other, are not those of its peers."""
    everything: list[list[int]] = [[4, 8]]
    nothing: list[list[int]] = []
    absent: dict[str, Any] = {"output_sizes": [[0]], "output_dtypes": ["Undefined"]}
    ranks = [
        [
            call(1, "gloo:gather", 8, output_sizes=everything if rank == 0 else nothing),
            call(2, "gloo:scatter", 8, input_sizes=everything if rank == 0 else nothing),
            call(3, "nccl:scatter", 8, **({"output_sizes": everything} if rank == 0 else absent)),
            unfinished_entry(4),
        ]
        for rank in range(3)
    ]
    report = report_of(write_dumps(tmp_path, [*ranks, ranks[1][:3]]))
    assert culprits(report) == [("hang", (3,))]


def test_a_rank_that_waits_in_another_group_is_a_victim(tmp_path: Path) -> None:
    """Ranks 0 and 2 wait for rank 1, which waits for rank 3 among the experts."""
    groups = {"7": (1, 3)}
    ranks = [
        [call(1), unfinished_entry(2)],
        [call(1), unfinished_entry(1, process_group=EXPERT)],
        [call(1), unfinished_entry(2)],
        [call(1)],
    ]
    report = report_of(write_dumps(tmp_path, ranks, groups))
    assert culprits(report) == [("hang", (3,))]
    assert first_finding(report).evidence["victims"] == [0, 1, 2]


def test_a_dump_without_a_call_entered_nothing(tmp_path: Path) -> None:
    """The world has 16 files; two of them hold no call, and no rank is missing."""
    silent = (9, 14)
    ranks = [[] if rank in silent else [unfinished_entry(1)] for rank in range(16)]
    report = report_of(write_dumps(tmp_path, ranks))
    assert culprits(report) == [("hang", silent)]
    assert "Ranks 9 and 14 entered nothing" in first_finding(report).sentence
    assert (report.summary.ranks_seen, report.summary.ranks_expected) == (16, 16)


def test_a_rank_without_a_dump_is_waited_for(tmp_path: Path) -> None:
    """It may have been stopped; that its dump is missing stands behind that."""
    report = report_of(
        write_dumps(
            tmp_path, [[call(1), unfinished_entry(2)], None, [call(1), unfinished_entry(2)]]
        )
    )
    assert culprits(report) == [("hang", (1,)), ("missing_rank", (1,))]
    assert "Rank 1 left no dump" in first_finding(report).sentence


def test_a_lost_dump_is_no_root_beside_one_that_is(tmp_path: Path) -> None:
    """Of rank 1 nothing is known, and rank 3 did not enter the call."""
    ranks = [[call(1), unfinished_entry(2)], None, [call(1), unfinished_entry(2)], [call(1)]]
    report = report_of(write_dumps(tmp_path, ranks))
    assert culprits(report) == [("hang", (3,)), ("missing_rank", (1,))]


def test_gathers_tell_the_size_of_the_world(tmp_path: Path) -> None:
    """Gloo's dumps name no members: a stopped last rank is known from what all gather."""
    entries = [
        call(1, "gloo:all_gather", 8, output_sizes=[[4, 8]]),
        unfinished_entry(2, "gloo:all_reduce"),
    ]
    folder = write_dumps(tmp_path, [entries] * 3)
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes().replace(b"[0, 1, 2]", b"[]       "))
    assert culprits(report_of(folder)) == [("hang", (3,)), ("missing_rank", (3,))]


def test_the_rank_that_makes_another_call_is_the_root(tmp_path: Path) -> None:
    """All ranks are in call 2, but one calls another operation: no hang is reported as well."""
    ranks = [[call(1), unfinished_entry(2)] for _ in range(4)]
    ranks[2] = [call(1), call(2, "nccl:broadcast"), unfinished_entry(3)]
    report = report_of(write_dumps(tmp_path, ranks))
    assert culprits(report) == [("desync", (2,))]
    assert "broadcast of 4096 bytes on rank 2, but allreduce" in first_finding(report).sentence


def test_sizes_that_must_be_equal_are_compared(tmp_path: Path) -> None:
    """The inputs of a reduction or a gathering, and the root's outputs."""
    for seq, name in enumerate(
        ("all_reduce", "_all_gather_base", "reduce_scatter", "broadcast"), 1
    ):
        folder = tmp_path / name
        folder.mkdir()
        ranks = [[unfinished_entry(seq, f"nccl:{name}", 8 + (rank == 1))] for rank in range(3)]
        assert culprits(report_of(write_dumps(folder, ranks))) == [("desync", (1,))], name


def test_two_parties_of_one_size_are_both_named(tmp_path: Path) -> None:
    """Nobody can tell which of two ranks is right."""
    report = report_of(
        write_dumps(tmp_path, [[unfinished_entry(1)], [unfinished_entry(1, "nccl:broadcast")]])
    )
    assert [kind for kind, _ in culprits(report)] == ["desync"]
    assert "allreduce of 4096 bytes on rank 0, but broadcast" in first_finding(report).sentence


def test_a_hang_comes_before_a_mismatch_that_stopped_nobody(tmp_path: Path) -> None:
    ranks = [[call(1, size=8 + (rank == 0)), call(2), unfinished_entry(3)] for rank in range(4)]
    ranks[3].pop()
    report = report_of(write_dumps(tmp_path, ranks))
    assert culprits(report) == [("hang", (3,)), ("desync", (0,))]
    assert report.verdict.headline.startswith("HANG rank 3")


def test_ranks_that_wait_for_each_other_are_one_root(tmp_path: Path) -> None:
    """Ranks 0 and 1 take two groups in opposite order; rank 2 waits for both."""
    groups = {"7": (0, 1), "8": (0, 1)}
    ranks = [
        [call(1), unfinished_entry(1, process_group=EXPERT)],
        [call(1), unfinished_entry(1, process_group=PIPE)],
        [call(1), unfinished_entry(2)],
    ]
    report = report_of(write_dumps(tmp_path, ranks, groups))
    assert culprits(report) == [("hang", (0, 1))]
    assert "In a circle ranks 0 and 1 wait for each other" in first_finding(report).sentence
    assert first_finding(report).sentence.endswith("1 more rank waits in turn.")


def test_most_ranks_of_a_group_are_right(tmp_path: Path) -> None:
    """Rank 1 skipped the call that all others are in, and waits for one of them in the next."""
    groups = {"7": (0, 1)}
    ranks = [[call(1), unfinished_entry(2)] for _ in range(4)]
    ranks[1] = [call(1), unfinished_entry(1, process_group=EXPERT)]
    report = report_of(write_dumps(tmp_path, ranks, groups))
    assert culprits(report) == [("hang", (1,))]
    assert "It is in allreduce #1 of group 7 itself." in first_finding(report).sentence


def test_a_rank_that_skipped_a_call_of_two_is_the_root(tmp_path: Path) -> None:
    """Rank 1 is where most are, and made one call less than these on its way."""
    groups = {"7": (0, 1), "8": (2, 3)}
    ranks = [[call(1), call(1, process_group=PIPE), unfinished_entry(2)] for _ in range(4)]
    ranks[0] = [call(1), unfinished_entry(1, process_group=EXPERT)]
    ranks[1] = [call(1), unfinished_entry(2)]
    report = report_of(write_dumps(tmp_path, ranks, groups))
    assert culprits(report) == [("hang", (1,))]
    assert "Rank 1 did not enter allreduce #1 of group 7, in which rank 0 waits." in (
        first_finding(report).sentence
    )


def test_a_call_that_all_entered_has_no_culprit(tmp_path: Path) -> None:
    report = report_of(write_dumps(tmp_path, [[call(1), unfinished_entry(2)]] * 2))
    assert culprits(report) == [("hang", ())]
    assert (
        "entered allreduce #2 of group default_pg, and it did not end"
        in first_finding(report).sentence
    )


def test_who_entered_nothing_is_the_root_where_groups_name_no_members(tmp_path: Path) -> None:
    """Gloo's dumps do not say that rank 2 belongs to the group, which all others entered."""
    waiting = [unfinished_entry(1, "gloo:all_reduce", process_group=EXPERT)]
    folder = write_dumps(tmp_path, [waiting, waiting, []])
    assert culprits(report_of(folder)) == [("hang", (2,))]


def test_a_call_in_the_queue_of_a_device_is_not_entered(tmp_path: Path) -> None:
    """Programs run ahead of devices: rank 2 has called it, and its device does something else."""
    ranks = [[call(1), unfinished_entry(2, state="started"), unfinished_entry(3)] for _ in range(3)]
    ranks[2] = [call(1), unfinished_entry(2), unfinished_entry(3)]
    assert culprits(report_of(write_dumps(tmp_path, ranks))) == [("hang", (2,))]


def test_parts_of_one_call_are_not_open(tmp_path: Path) -> None:
    """PyTorch marks only the entry that ends a coalesced call when it is over."""
    member = unfinished_entry(1, "nccl:reduce_scatter_tensor_coalesced", size=8)
    other_member = unfinished_entry(1, "nccl:reduce_scatter_tensor_coalesced", size=16)
    group_end = call(1, "nccl:coalesced")
    entries = [member, other_member, group_end, unfinished_entry(2)]
    report = report_of(write_dumps(tmp_path, [entries, entries, entries[:3]]))
    assert culprits(report) == [("hang", (2,))]
    assert first_finding(report).evidence["call"] == 2


def test_messages_lead_to_the_root(tmp_path: Path) -> None:
    """Rank 2 waits for rank 1, which waits for a message of rank 0; ranks are those of the group."""
    groups = {"7": (1, 2), "8": (3, 0, 1)}
    receives = unfinished_entry(0, "nccl:recv 2<-1", process_group=PIPE, is_p2p=True, p2p_seq_id=1)
    ranks = [
        [call(1)],
        [call(1), receives],
        [call(1), unfinished_entry(1, process_group=EXPERT)],
        [call(1), unfinished_entry(2)],
    ]
    report = report_of(write_dumps(tmp_path, ranks, groups))
    assert culprits(report) == [("hang", (0,))]


def test_what_a_ring_lost_is_not_missing(tmp_path: Path) -> None:
    """Rank 1 made other calls meanwhile, which overwrote the first ones."""
    first_seq = 5_000_000  # of a long job
    ranks = [[call(first_seq + number) for number in range(8)] for _ in range(2)]
    ranks[1] = ranks[1][6:]
    ranks[0].append(unfinished_entry(first_seq + 8))
    trace = tl.open(write_dumps(tmp_path, ranks))
    assert trace.recognition
    assert "first missing: call 5000008" in dict(trace.recognition.facts)["group default_pg"]
    assert culprits(tl.analyze(trace)) == [("hang", (1,))]


def test_groups_of_one_name_and_other_ranks_are_two(tmp_path: Path) -> None:
    """Groups that are split from one have its name."""
    for members, folder in (((0, 1), tmp_path), ((2, 3), tmp_path)):
        ranks: list[Any] = [None] * 4
        for rank in members:
            ranks[rank] = [call(1, process_group=EXPERT)]
        if members == (2, 3):
            ranks[3].append(unfinished_entry(2, process_group=EXPERT))
        write_dumps(folder, ranks, {"7": members})
    assert culprits(report_of(tmp_path)) == [("hang", (2,))]


def test_torchcomms_counts_over_all_groups(tmp_path: Path) -> None:
    """Its numbers differ between ranks that are in other groups, also where all is well."""
    of_all, experts = ("world", "ncclx"), ("experts", "ncclx")

    def number_calls(*groups: tuple[str, str]) -> list[Any]:
        return [
            call(number, "ncclx:all_reduce", process_group=group)
            for number, group in enumerate(groups)
        ]

    ranks = [
        number_calls(of_all, of_all, of_all),
        number_calls(of_all, experts, of_all, of_all),
        number_calls(of_all, experts, experts, of_all),
    ]
    for entries in ranks[:2]:
        entries[-1] |= unfinished_entry(
            entries[-1]["collective_seq_id"], "ncclx:all_reduce", process_group=of_all
        )
    groups = {"world": (0, 1, 2), "experts": (1, 2)}
    report = report_of(write_dumps(tmp_path, ranks, groups))
    assert culprits(report) == [("hang", (2,))]
    assert first_finding(report).evidence["call"] == 2


def test_dumps_as_json_are_read(tmp_path: Path) -> None:
    """One of them holds no call."""
    folder = write_as_json(tmp_path, [[unfinished_entry(1)], [unfinished_entry(1)], []])
    report = report_of(folder)
    assert culprits(report) == [("hang", (2,))]
    assert "Rank 2 entered nothing" in first_finding(report).sentence


def test_no_share_of_time_is_told(tmp_path: Path) -> None:
    """A ring of the last calls is no record of a run's time, even where its calls come in steps."""
    ranks = [[call(seq) for seq in range(1, 81)] for _ in range(3)]
    report = report_of(write_dumps(tmp_path, ranks))
    assert (report.efficiency, report.ledger, report.summary.steps) == (None, None, 0)
    assert not [note for note in report.notes if note.kind in {"clock", "unjudged"}]


def test_a_part_of_the_ranks_is_still_a_ring(tmp_path: Path) -> None:
    """Ranks that are left out as asked are waited for by none."""
    ranks = [[call(1), unfinished_entry(2)], [call(1)], [call(1), unfinished_entry(2)]]
    folder = write_dumps(tmp_path, ranks)
    report = tl.analyze(tl.open(folder, ranks="0-1"))
    assert culprits(report) == [("hang", (1,))]
    assert report.efficiency is None
    assert culprits(tl.analyze(tl.open(folder, ranks="0,2")))[0][1] == ()
