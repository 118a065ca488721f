"""Mount tables, accounts, state files and locks of development clusters."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hpresume.devcluster import mounts
from hpresume.devcluster.accounts import accounts, find_account, group_text, passwd_text
from hpresume.devcluster.cgroups import plugin_for_machine
from hpresume.devcluster.layout import DEFAULT_DIRECTORY, base_directory, layout_of
from hpresume.devcluster.mounts import mount_table
from hpresume.devcluster.processes import ProcessId
from hpresume.devcluster.spec import ClusterSpec
from hpresume.devcluster.state import (
    HostState,
    load_state,
    locked,
    new_machine,
    new_state,
    save_state,
)
from hpresume.devcluster.store import Store
from hpresume.errors import DevClusterError, MissingDependencyError, UsageError

USERS = accounts(Path("/s/home")).values()


class TestAccounts:
    def test_users_are_added(self):
        text = passwd_text("root:x:0:0:root:/root:/bin/sh\n", USERS)
        assert text.splitlines() == [
            "root:x:0:0:root:/root:/bin/sh",
            "trainer:x:20001:20001::/s/home/trainer:/bin/bash",
            "other:x:20002:20002::/s/home/other:/bin/bash",
        ]

    @pytest.mark.parametrize(
        "line", ["trainer:x:1000:1000::/h:/bin/sh", "me:x:20002:5::/h:/bin/sh"]
    )
    def test_clashing_accounts_of_the_machine_are_hidden(self, line):
        lines = passwd_text(f"{line}\nme2:x:5:5::/h:/bin/sh\n", USERS).splitlines()
        assert lines[0] == "me2:x:5:5::/h:/bin/sh"
        assert len(lines) == 3

    def test_groups(self):
        lines = group_text("root:x:0:\nx:x:20001:\n", USERS).splitlines()
        assert lines == ["root:x:0:", "trainer:x:20001:", "other:x:20002:"]

    def test_unknown(self):
        with pytest.raises(UsageError, match="unknown user 'bob': use one of root, trainer, other"):
            find_account("bob", Path("/s"))


class TestLayout:
    def test_default_and_variable(self, monkeypatch):
        monkeypatch.delenv("HPRESUME_DEVCLUSTER_DIR", raising=False)
        assert layout_of("dev").root == DEFAULT_DIRECTORY / "dev"
        monkeypatch.setenv("HPRESUME_DEVCLUSTER_DIR", "/srv/c")
        assert layout_of("dev").munge_socket == Path("/srv/c/dev/munge/munge.socket.2")

    @pytest.mark.parametrize("path", ["relative", "/with space", "/" + "x" * 61, "/a[1]"])
    def test_unusable(self, monkeypatch, path):
        monkeypatch.setenv("HPRESUME_DEVCLUSTER_DIR", path)
        with pytest.raises(UsageError, match="HPRESUME_DEVCLUSTER_DIR="):
            base_directory()


class TestMountTable:
    def table(self, *visible: str, binds: tuple[tuple[Path, Path], ...] = ()) -> list[list[str]]:
        text = mount_table(
            "n1",
            private=Path("/s/p"),
            etc=Path("/s/etc"),
            munge=Path("/s/munge"),
            visible=[Path(path) for path in visible],
            binds=binds,
        )
        return [line.split() for line in text.splitlines()]

    def test_private_directories_and_files(self):
        targets = [line[1] for line in self.table()]
        assert {"/tmp", "/run", "/dev/shm", "/etc/hosts", "/sys", "/proc"} <= set(targets)
        assert targets[-1] == "/proc"  # from here on pids are the host's

    def test_what_must_be_seen_below_a_private_directory_is_bound_before_it_is_covered(self):
        table = self.table("/tmp/a/b", "/tmp/a/b/c", "/home/x", "/tmp")
        bound = [line for line in table if line[0].startswith("/tmp")]
        assert bound == [["/tmp/a/b", "/s/p/tmp/a/b", "none", "rbind,x-mount.mkdir"]]
        cover = next(i for i, line in enumerate(table) if line[1] == "/tmp")
        assert table.index(bound[0]) < cover

    def test_cgroups(self):
        group = Path("/sys/fs/cgroup/freezer/x/n1"), Path("/sys/fs/cgroup/freezer")
        table = self.table(binds=(group,))
        assert [str(group[0]), "/s/p/sys/fs/cgroup/freezer", "none", "bind"] in table

    def test_file_behind_a_link_into_a_private_directory(self, monkeypatch):
        """/etc/resolv.conf of systemd-resolved: hidden together with /run."""
        real = Path.resolve

        def resolve(path: Path, strict: bool = False) -> Path:
            target = "/run/systemd/resolve/stub-resolv.conf"
            return Path(target) if path.name == "resolv.conf" else real(path, strict)

        monkeypatch.setattr(mounts.Path, "resolve", resolve)
        assert not any("resolv" in word for line in self.table() for word in line)


class TestState:
    def test_round_trip(self, tmp_path):
        state = new_state(ClusterSpec(nodes=2, overrides=(("KillWait", "3"),)))
        state = state.with_host(HostState("n2", ProcessId(5, 77), 3, frozen=True, connected=False))
        state = state.with_machine(HostState("x1", None, machine=new_machine("x1", "t"), number=65))
        state = state.with_machine(replace(state.hosts["n1"], machine=None))
        state = replace(state, init=ProcessId(4, 70))
        save_state(tmp_path / "s", state)
        assert load_state(tmp_path / "s") == state

    def test_none(self, tmp_path):
        assert load_state(tmp_path / "s") is None

    @pytest.mark.parametrize("text", ["{", "{}", '{"hosts": {"n1": {"x": 1}}}'])
    def test_unreadable(self, tmp_path, text):
        (tmp_path / "s").write_text(text)
        with pytest.raises(DevClusterError):
            load_state(tmp_path / "s")

    def test_plugin_that_was_deleted_since(self, tmp_path):
        plugin = tmp_path / "p.so"
        plugin.touch()
        save_state(tmp_path / "s", new_state(ClusterSpec(plugin=plugin, supervisor=plugin)))
        plugin.unlink()
        state = load_state(tmp_path / "s")
        assert state is not None
        assert state.spec.plugin is None

    def test_an_unknown_host_tells_all_that_there_are(self, monkeypatch):
        store = Store("t")
        state = replace(new_state(ClusterSpec(nodes=2)), init=ProcessId.of(1))
        monkeypatch.setattr(store, "state", lambda: state)
        with pytest.raises(UsageError, match=r"'n9': cluster t has ctl and n1 to n2$"):
            store.host("n9")
        for name in ("gpu-2", "gpu-1"):  # launched later
            state = state.with_host(HostState(name, number=65))
        with pytest.raises(UsageError, match=r"has ctl and n1 to n2, and gpu-1, gpu-2$"):
            store.host("gpu-3")

    def test_state_of_before_a_reboot_does_not_run(self):
        own = ProcessId.of(1)
        state = replace(new_state(ClusterSpec()), init=own)
        assert state.running
        assert not replace(state, boot_id="another").running

    def test_recycled_pid_is_another_process(self):
        own = ProcessId.of(1)
        assert own.alive()
        assert not ProcessId(own.pid, own.start + 1).alive()

    def test_conditions(self):
        host = HostState("n1", ProcessId.of(1))
        assert HostState("n1").condition == "terminated"
        assert HostState("n1", machine=new_machine("n1")).condition == "crashed"
        assert host.condition == "running"
        assert replace(host, frozen=True, connected=False).condition == "hung, disconnected"


class TestLock:
    def test_held_by_another(self, tmp_path):
        path = tmp_path / "lock"
        with (
            locked(path, 0),
            pytest.raises(DevClusterError, match="another command is at work"),
            locked(path, 0.05),
        ):
            pass
        assert not path.exists()

    def test_one_at_a_time(self, tmp_path):
        inside: list[int] = []
        most: list[int] = []

        def work() -> None:
            for _ in range(20):
                with locked(tmp_path / "lock", 30):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(most) == 80
        assert max(most) == 1


class TestCgroups:
    V1 = "".join(
        f"cgroup /sys/fs/cgroup/{name} cgroup rw,{name} 0 0\n"
        for name in ("cpuset", "freezer", "memory")
    )

    def test_version_1(self):
        assert plugin_for_machine(self.V1) == "cgroup/v1"

    @pytest.mark.parametrize(
        ("mounts_text", "missing"),
        [
            ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "cpuset, freezer, memory"),
            (V1.replace("freezer", "frozen"), "freezer"),
        ],
    )
    def test_missing_controllers(self, mounts_text, missing):
        with pytest.raises(MissingDependencyError, match=f"this machine has no {missing} there"):
            plugin_for_machine(mounts_text)
