"""Merge mode: our entries change, and not a byte of anything else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from provision_world import CONTROLLER, World, workers

from hpresume.errors import SlurmError
from hpresume.provision.conf_files import BACKUP, install
from hpresume.provision.conf_lines import Line, goes_on, lines
from hpresume.provision.ports import Hardware, NodeEntry, SlurmEntries, slurm_entries
from hpresume.provision.slurm_conf import edit_gres_conf, edit_slurm_conf, node_names, problems

ADMIN = """\
# our cluster   \t
ClusterName=lab
SlurmctldHost=head
SchedulerParameters = bf_interval=2,\\
    sched_interval=2   # said on the phone
NodeName=DEFAULT RealMemory=1000

NodeName=old[1-3] CPUs=8   Weight=3
PartitionName=DEFAULT MaxTime=30
PartitionName=main Nodes=old[1-3] Default=YES
"""


def entries(*numbers: int, partition: str = "p1", address: str = "10.0.0.{}") -> SlurmEntries:
    nodes = tuple(NodeEntry(f"w-{n}", address.format(n), "CPUs=4 RealMemory=7000") for n in numbers)
    return SlurmEntries(nodes, {partition: tuple(node.name for node in nodes)})


NONE = SlurmEntries()


def test_new_entries_stand_at_the_end_and_the_rest_is_as_it_was() -> None:
    text = edit_slurm_conf(ADMIN, entries(1, 2))
    assert text.startswith(ADMIN)
    assert text[len(ADMIN) :] == (
        "NodeName=w-1 NodeAddr=10.0.0.1 CPUs=4 RealMemory=7000 # hpresume\n"
        "NodeName=w-2 NodeAddr=10.0.0.2 CPUs=4 RealMemory=7000 # hpresume\n"
        "PartitionName=p1 Nodes=w-1,w-2 State=UP # hpresume\n"
    )


def test_the_first_partition_of_a_file_without_a_default_is_the_default() -> None:
    assert "PartitionName=p1 Nodes=w-1 Default=YES State=UP" in edit_slurm_conf("", entries(1))


def test_a_node_more_and_a_node_less_change_only_their_own_lines() -> None:
    before = edit_slurm_conf(ADMIN, entries(1, 2))
    after = edit_slurm_conf(before, entries(2, 3))
    assert "w-1 " not in after
    assert after.startswith(ADMIN)
    assert "PartitionName=p1 Nodes=w-2,w-3 State=UP # hpresume\n" in after
    assert node_names(after) == {"old1", "old2", "old3", "w-2", "w-3"}


def test_what_an_administrator_adds_to_our_lines_stays() -> None:
    before = edit_slurm_conf(ADMIN, entries(1, 2))
    theirs = (
        before.replace("RealMemory=7000 #", "RealMemory=6500  Weight=9 #", 1)
        .replace("PartitionName=p1", "PartitionName = p1  MaxTime=7-0")
        .replace("Nodes=w-1,w-2", "Nodes=old1,w-[1-2] AllowGroups=lab,staff")
    )
    after = edit_slurm_conf(theirs, entries(1, 2, 3))
    assert "CPUs=4 RealMemory=6500  Weight=9 # hpresume\n" in after
    assert (
        "PartitionName = p1  MaxTime=7-0 Nodes=old1,w-[1-3] AllowGroups=lab,staff "
        "State=UP # hpresume\n" in after
    )
    assert edit_slurm_conf(after, entries(1, 2, 3)) == after


def test_a_new_address_is_put_in_place() -> None:
    before = edit_slurm_conf(ADMIN, entries(1, 2))
    after = edit_slurm_conf(before, entries(1, 2, address="10.9.9.{}"))
    assert after == before.replace("10.0.0.", "10.9.9.")


def test_entries_of_a_deleted_group_go_and_a_partition_of_the_administrator_stays() -> None:
    before = edit_slurm_conf(ADMIN, entries(1, 2)).replace("main Nodes=old", "main Nodes=w-2,old")
    after = edit_slurm_conf(before, NONE)
    assert after == ADMIN


def test_a_partition_that_is_empty_for_now_stays() -> None:
    before = edit_slurm_conf(ADMIN, entries(1))
    assert 'PartitionName=p1 Nodes="" State=UP' in edit_slurm_conf(before, entries())


def test_a_partition_of_all_nodes_is_left_alone() -> None:
    text = ADMIN + "PartitionName=p1 Nodes=ALL OverSubscribe=NO\n"
    assert "PartitionName=p1 Nodes=ALL OverSubscribe=NO\n" in edit_slurm_conf(text, entries(1))


def test_lines_that_an_administrator_has_put_together_are_taken_apart_again() -> None:
    text = "NodeName=w-[1-3],old9 NodeAddr=10.0.0.[1-3],10.1.1.9 Weight=5\n"
    kept = edit_slurm_conf(text, SlurmEntries(entries(1, 2, 3).nodes))
    assert kept == text
    after = edit_slurm_conf(text, SlurmEntries(entries(1, 3).nodes, gone=frozenset({"w-2"})))
    assert after == "NodeName=w-[1,3],old9 NodeAddr=10.0.0.1,10.0.0.3,10.1.1.9 Weight=5\n"


def test_what_has_a_value_for_each_node_is_taken_apart_with_them() -> None:
    text = "NodeName=w-[1-3] NodeHostname=h[1-3] NodeAddr=10.0.0.[1-3] Port=[7001-7003] Weight=5\n"
    after = edit_slurm_conf(text, SlurmEntries(entries(1, 3).nodes, gone=frozenset({"w-2"})))
    assert after == (
        "NodeName=w-1,w-3 NodeHostname=h1,h3 NodeAddr=10.0.0.1,10.0.0.3 Port=7001,7003 Weight=5\n"
    )
    moved = SlurmEntries(entries(2, address="10.9.9.{}").nodes, gone=frozenset({"w-1", "w-3"}))
    assert edit_slurm_conf(text, moved).startswith(
        "NodeName=w-2 NodeHostname=h2 NodeAddr=10.9.9.2 Port=7002 Weight=5 CPUs=4"
    )


def test_a_partition_that_an_administrator_makes_of_our_nodes_is_theirs() -> None:
    theirs = "PartitionName=debug Nodes=w-1,w-2,old1 MaxTime=30\n"
    before = edit_slurm_conf("", entries(1, 2)) + theirs
    assert theirs in edit_slurm_conf(before, entries(1, 2, 3))
    less = replace(entries(2), gone=frozenset({"w-1"}))
    assert "PartitionName=debug Nodes=w-2,old1 MaxTime=30\n" in edit_slurm_conf(before, less)


def test_a_group_that_moves_to_another_partition_leaves_the_first() -> None:
    own = "PartitionName=p1 Nodes=old[1-2],w-9 MaxTime=30\n"
    before = edit_slurm_conf(own, entries(1, 2))
    assert "Nodes=old[1-2],w-9,w-1,w-2 " in before
    moved = replace(entries(1, 2, partition="p2"), before=entries(1, 2).partitions)
    after = edit_slurm_conf(before, moved)
    assert own in after
    assert "PartitionName=p2 Nodes=w-1,w-2 " in after


def test_nodes_that_only_look_like_ours_stay_the_administrators() -> None:
    own = (
        "NodeName=w-[7-9] CPUs=8 Weight=3\nNodeName=w-4 CPUs=2\n"
        "PartitionName=p1 Nodes=w-[4,7-9] MaxTime=30\n"
    )
    after = edit_slurm_conf(own, entries(1, 2))
    assert after.startswith(own.replace("Nodes=w-[4,7-9]", "Nodes=w-[4,7-9],w-1,w-2"))
    assert edit_slurm_conf(after, NONE) == own
    gres = "NodeName=w-[7-9] Name=gpu File=/dev/nvidia0\n"
    assert edit_gres_conf(gres, entries(1, 2)) == gres
    # One that is on its way, written down before: it is there when its machine is.
    coming = replace(entries(1, 2), coming=frozenset({"w-4"}))
    assert "NodeName=w-4 CPUs=2\n" in edit_slurm_conf(own, coming)


@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ("NodeName=a CPUs=4\n", [("NodeName", "a"), ("CPUs", "4")]),
        ("  nodename = a   CPUs= 4 # x=y\n", [("nodename", "a"), ("CPUs", "4")]),
        ('Reason="a b=c" X=1', [("Reason", "a b=c"), ("X", "1")]),
        ("A=1 \\\n B=2\n", [("A", "1"), ("B", "2")]),
        ("Nodes=a,\\  \nb X=1\n", [("Nodes", "a,b"), ("X", "1")]),
        ("# NodeName=a\n", []),
        ("A=1\u00a0B=2\n", [("A", "1\u00a0B=2")]),
        ("# a comment goes on \\\nNodeName=a\n", []),
        ("X=a\\#b Y=2\n", [("X", "a\\#b"), ("Y", "2")]),
        ("PrologFlags+=Alloc\n", [("PrologFlags", "Alloc")]),
    ],
)
def test_lines_are_read_as_slurm_reads_them(line: str, pairs: list[tuple[str, str]]) -> None:
    (only,) = lines(line)
    assert [(pair.key, pair.value) for pair in only.pairs] == pairs


def test_a_value_over_two_lines_is_replaced() -> None:
    (line,) = lines("PartitionName=p1 Nodes=w-1,\\\n  w-2 MaxTime=5 # x\n")
    assert line.get("Nodes") == "w-1,"
    (line,) = lines("PartitionName=p1 Nodes=w-1,\\\nw-2 MaxTime=5 # x\n")
    assert line.get("Nodes") == "w-1,w-2"
    assert line.with_value("Nodes", "a").raw == "PartitionName=p1 Nodes=a MaxTime=5 # x\n"
    assert line.with_value("New", "1").raw.endswith("MaxTime=5 New=1 # x\n")


def test_devices_of_gres_conf() -> None:
    mine = SlurmEntries(
        (
            NodeEntry("w-1", gres=("Name=gpu File=/dev/nvidia[0-7]",)),
            NodeEntry("w-2", gres=("Name=gpu File=/dev/nvidia[0-7]",)),
        ),
    )
    text = "AutoDetect=off\nNodeName=old[1-3] Name=gpu File=/dev/nvidia0\n"
    after = edit_gres_conf(text, mine)
    assert after == text + "".join(
        f"NodeName=w-{n} Name=gpu File=/dev/nvidia[0-7] # hpresume\n" for n in (1, 2)
    )
    assert edit_gres_conf(after, mine) == after
    assert edit_gres_conf(after, NONE) == text
    theirs = f"{text}NodeName=w-[1-2] Name=gpu File=/dev/x[0-1]\n"
    assert edit_gres_conf(theirs, mine) == theirs
    left = replace(entries(1), gone=frozenset({"w-2"}))
    assert edit_gres_conf(theirs, left).endswith("NodeName=w-1 Name=gpu File=/dev/x[0-1]\n")
    coming = replace(entries(1), coming=frozenset({"w-2"}))
    assert edit_gres_conf(theirs, coming) == theirs


def test_what_is_set_for_an_instance_type_counts_before_what_the_machine_says() -> None:
    world = World(CONTROLLER, workers(1), slurm=True)
    world.settle(10)
    hardware = {"ml.c5.xlarge": Hardware("Gres=gpu:2 CPUs=96", ("Name=gpu File=/dev/a",))}
    (entry,) = slurm_entries(world.state, "dev", hardware).nodes
    assert entry.shape == "Gres=gpu:2 CPUs=96"
    assert entry.gres == ("Name=gpu File=/dev/a",)
    assert slurm_entries(world.state).nodes[0].shape == "CPUs=2"


class TestProblems:
    def test_a_good_file_has_none(self) -> None:
        assert problems(edit_slurm_conf(ADMIN, entries(1, 2))) == []

    def test_a_node_twice(self) -> None:
        assert problems(ADMIN + "NodeName=old2\n") == ["node old2 is defined twice"]

    def test_a_partition_of_unknown_nodes(self) -> None:
        text = ADMIN + "PartitionName=x Nodes=old[2-5]\n"
        assert problems(text) == ["partition x has nodes that are not defined: old4,old5"]
        assert problems(text + "Include more.conf\n") == []

    def test_node_sets_are_known(self) -> None:
        assert problems(ADMIN + "NodeSet=s Nodes=old1\nPartitionName=x Nodes=s\n") == []


class TestInstall:
    def test_it_is_whole_with_a_backup_and_the_mode_it_had(self, tmp_path: Path) -> None:
        path = tmp_path / "slurm.conf"
        path.write_bytes(b"A=1 # \xff\n")
        path.chmod(0o640)
        done = install(path, lambda text: text + "B=2\n", lambda candidate: None)
        assert done is not None
        assert path.read_bytes() == b"A=1 # \xff\nB=2\n"
        assert path.stat().st_mode & 0o777 == 0o640
        assert (tmp_path / f"slurm.conf{BACKUP}").read_bytes() == b"A=1 # \xff\n"
        done.undo()
        assert path.read_bytes() == b"A=1 # \xff\n"
        assert {p.name for p in tmp_path.iterdir()} == {"slurm.conf", f"slurm.conf{BACKUP}"}

    def test_nothing_happens_without_a_change(self, tmp_path: Path) -> None:
        path = tmp_path / "slurm.conf"
        path.write_text("A=1\n")
        assert install(path, lambda text: text, lambda candidate: None) is None
        assert [p.name for p in tmp_path.iterdir()] == ["slurm.conf"]

    def test_what_the_check_refuses_is_not_installed(self, tmp_path: Path) -> None:
        path = tmp_path / "slurm.conf"
        path.write_text("A=1\n")

        def refuse(candidate: Path) -> None:
            assert candidate.read_text() == "broken\n"
            raise SlurmError("broken")

        with pytest.raises(SlurmError, match="broken"):
            install(path, lambda text: "broken\n", refuse)
        assert [p.name for p in tmp_path.iterdir()] == ["slurm.conf"]
        assert path.read_text() == "A=1\n"

    def test_a_link_stays_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "shared").mkdir()
        real = tmp_path / "shared" / "slurm.conf"
        real.write_text("a")
        link = tmp_path / "slurm.conf"
        link.symlink_to("shared/slurm.conf")
        done = install(link, lambda text: text + "b", lambda path: None)
        assert link.is_symlink()
        assert real.read_text() == "ab"
        assert done is not None
        done.undo()
        assert link.is_symlink()
        assert link.read_text() == "a"
        assert {p.name for p in tmp_path.iterdir()} == {
            "shared",
            "slurm.conf",
            f"slurm.conf{BACKUP}",
        }
        assert [p.name for p in real.parent.iterdir()] == ["slurm.conf"]

    def test_the_same_trouble_has_the_same_text(self, tmp_path: Path) -> None:
        conf = tmp_path / "no" / "slurm.conf"
        for _ in range(2):
            with pytest.raises(SlurmError) as raised:
                install(conf, lambda text: text + "b", lambda path: None)
            assert str(raised.value) == f"{conf}: cannot be written: No such file or directory"

    def test_a_change_by_somebody_else_meanwhile_is_not_lost(self, tmp_path: Path) -> None:
        path = tmp_path / "slurm.conf"
        path.write_text("A=1\n")
        with pytest.raises(SlurmError, match="somebody else"):
            install(path, lambda text: text + "B\n", lambda _: path.write_text("A=2\n") and None)
        assert path.read_text() == "A=2\n"


FOREIGN = st.one_of(
    st.sampled_from(
        [
            "",
            "   ",
            "# NodeName=w-1 hpresume",
            "ClusterName=x",
            "NodeName=DEFAULT CPUs=2 \\\n  RealMemory=5",
            "NodeName=DEFAULT State=UNKNOWN",
            "PartitionName=DEFAULT\tMaxTime=5",
            "Include other.conf",
            "PartitionName=all Nodes=ALL",
            'DownNodes=x Reason="a # b"',
            "SwitchName=s Nodes=a[1-2] # hpresume x",
            "# goes on \\\nNodeName=w-2",
            "\x0cFF=\x85x",
            "\udcff\udcfe=broken bytes",
            "Key=with\\#hash\r",
        ]
    ),
    st.text(alphabet="ab =#\\\"'\t,[1-9]", max_size=30).map(lambda text: "Zz=" + text + "z"),
)
NUMBERS = st.lists(st.integers(1, 12), unique=True, max_size=8)


def made(numbers: list[int], octet: int, partition: str) -> SlurmEntries:
    return entries(*sorted(numbers), partition=partition, address=f"10.0.{octet}." + "{}")


@given(
    foreign=st.lists(FOREIGN, max_size=12),
    first=NUMBERS,
    second=NUMBERS,
    octets=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    partitions=st.tuples(st.sampled_from(["p1", "p2"]), st.sampled_from(["p1", "p2"])),
)
def test_edits_are_exact_idempotent_and_leave_no_trace(
    foreign: list[str],
    first: list[int],
    second: list[int],
    octets: tuple[int, int],
    partitions: tuple[str, str],
) -> None:
    admin = "".join(f"{line}\n" for line in foreign)
    last = list(lines(admin))[-1:]
    if last and goes_on(last[0]):
        admin += "\n"  # what the edit adds as well, once
    one = edit_slurm_conf(admin, made(first, octets[0], partitions[0]))
    two = edit_slurm_conf(one, made(second, octets[1], partitions[1]))
    for text, numbers, octet in ((one, first, octets[0]), (two, second, octets[1])):
        assert text.startswith(admin)
        ours = [line for line in lines(text[len(admin) :]) if line.is_about("NodeName")]
        assert sorted((line.get("NodeName"), line.get("NodeAddr")) for line in ours) == sorted(
            (f"w-{n}", f"10.0.{octet}.{n}") for n in numbers
        )
    assert edit_slurm_conf(two, made(second, octets[1], partitions[1])) == two
    assert edit_slurm_conf(two, NONE) == admin


def test_a_blank_of_unicode_is_none() -> None:
    assert [line.raw for line in lines("X=y\\\u00a0\nZ=1\n")] == ["X=y\\\u00a0\n", "Z=1\n"]


@given(st.text(max_size=60))
def test_lines_put_together_are_the_text(text: str) -> None:
    assert "".join(line.raw for line in lines(text)) == text
    for line in lines(text):
        assert isinstance(line, Line)
        assert all(line.get(pair.key) is not None for pair in line.pairs)
