"""Accounting of a development cluster: configuration texts, what is missing, what listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpresume.devcluster import database, requirements
from hpresume.devcluster.accounting import listening_ports, slurmdbd_conf
from hpresume.devcluster.database import mariadbd_conf
from hpresume.devcluster.layout import Layout
from hpresume.devcluster.slurm_conf import slurm_conf
from hpresume.devcluster.spec import ClusterSpec
from hpresume.errors import DevClusterError, MissingDependencyError

LAYOUT = Layout(Path("/var/tmp/x"))


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


@pytest.mark.parametrize("version", [(21, 8), (22, 5), (24, 11), (26, 5)])
def test_slurmctld_reaches_slurmdbd_by_the_clusters_munge(version):
    found = settings(slurm_conf(ClusterSpec(accounting=True), LAYOUT, version))
    assert found["AccountingStorageType"] == "accounting_storage/slurmdbd"
    assert found["AccountingStorageHost"] == "ctl"
    assert found["AccountingStoragePass"] == "/var/tmp/x/munge/munge.socket.2"


def test_no_accounting_unless_asked_for():
    assert "Accounting" not in slurm_conf(ClusterSpec(), LAYOUT, (22, 5))


def test_slurmdbd_stays_on_the_controller_and_needs_no_password():
    found = settings(slurmdbd_conf(LAYOUT))
    assert found["DbdHost"] == "ctl"
    assert found["StorageHost"] == "localhost"  # the only host that means a Unix socket
    assert found["StorageUser"] == "root"
    assert "StoragePass" not in found
    files = [found["PidFile"], found["LogFile"]]
    assert files == ["/var/tmp/x/host/ctl/slurmdbd.pid", "/var/tmp/x/log/slurmdbd.log"]


def test_database_is_private_to_the_cluster():
    text = mariadbd_conf(LAYOUT)
    assert text.startswith("[mariadbd]\n")
    found = settings(text)
    assert found["skip-networking"] == "1"
    for key in ("datadir", "socket", "pid-file"):
        assert found[key].startswith("/var/tmp/x/mariadb/")


def test_socket_paths_stay_short_enough():
    longest = Layout(Path("/" + "d" * 59) / ("n" * 24))
    assert len(str(longest.database_socket)) <= 107


@pytest.mark.parametrize("name", ["mysql_system_tables.sql", "mariadb_system_tables.sql"])
def test_sql_of_every_release_is_found(tmp_path, monkeypatch, name):
    monkeypatch.setattr(database, "_SHARE", (tmp_path / "none", tmp_path))
    with pytest.raises(DevClusterError, match="installed completely"):
        database._sql_file("system_tables.sql")
    (tmp_path / name).touch()
    assert database._sql_file("system_tables.sql") == tmp_path / name


@pytest.mark.parametrize(
    ("codename", "package"),
    [
        ("bookworm", "mariadb-server-core"),
        ("noble", "mariadb-server-core"),
        ("jammy", "mariadb-server-core-10.6"),
    ],
)
def test_missing_programs_are_named_with_their_packages(mocker, codename, package):
    lost = {"slurmdbd", "mariadbd"}
    mocker.patch.object(requirements.shutil, "which", lambda tool, path: tool not in lost or None)
    release = {"VERSION_CODENAME": codename}
    mocker.patch.object(requirements.platform, "freedesktop_os_release", return_value=release)
    requirements.require_tools()
    with pytest.raises(MissingDependencyError) as caught:
        requirements.require_tools(accounting=True)
    assert str(caught.value) == (
        f"not found: slurmdbd, mariadbd; install with: apt-get install {package} slurmdbd"
    )


def test_what_listens():
    table = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1AA3 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0
   1: 0100007F:1AA1 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0
"""
    assert listening_ports(table) == {6819}
    assert listening_ports("") == set()
