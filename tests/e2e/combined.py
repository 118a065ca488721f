"""One ``hpresume controller`` with the example's file on a dev cluster, and clients of its API."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import boto3
from botocore.config import Config
from cluster import CRASHED, E2eCluster, wait_for
from sqlalchemy import text

from hpresume.api.keys import load_keys, write_key
from hpresume.devcluster.layout import base_directory
from hpresume.recovery import table
from hpresume.store import Event, Store, events, open_store

NODES = text("select * from provision_nodes")
BILLS = text(
    "select began_at, ended_at from provision_billing where logical_id = :id order by began_at"
)

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME = "my-training-cluster"
GROUP = "worker-gpu-a"
WORKERS = [f"{GROUP}-{n}" for n in (1, 2, 3)]
BUCKET = "amzn-s3-demo-bucket"
KEY = "lifecycle-scripts/src/on_create.sh"
LISTENS = "the cluster API listens on"
LEADS = "this instance leads"
SCRIPT = b"#!/bin/sh\necho hello from $(hostname) >> /tmp/ran\n"


class FakeS3(http.server.BaseHTTPRequestHandler):
    """A bucket with one object: S3 itself cannot be here."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path).strip("/")
        if path == f"{BUCKET}/{KEY}":
            self._answer(SCRIPT)
        elif path == BUCKET and "list-type" in parts.query:
            prefix = parse_qs(parts.query).get("prefix", [""])[0]
            entry = f"<Contents><Key>{escape(KEY)}</Key><Size>{len(SCRIPT)}</Size></Contents>"
            found = entry if KEY.startswith(prefix) else ""
            xmlns = "http://s3.amazonaws.com/doc/2006-03-01/"
            self._answer(
                f'<ListBucketResult xmlns="{xmlns}"><IsTruncated>false</IsTruncated>{found}'
                "</ListBucketResult>".encode()
            )
        else:
            self.send_error(404)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def free_port() -> int:
    """A port of loopback that nobody has: an instance that comes back has the same one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Site:
    """An instance of ``hpresume controller`` with the example's file, and clients of its API.

    Two of them in one folder share keys and secret, and the database that both are given.
    """

    def __init__(
        self,
        cluster: E2eCluster,
        folder: Path,
        s3: str,
        *,
        name: str = "controller",
        database: str = "",
        lease_s: float = 15.0,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.folder = folder
        self.keys = folder / "api-keys"
        if not self.keys.exists():
            write_key(self.keys, "alice")
        self.database = database or f"sqlite:///{folder}/controller.db"
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        text = (EXAMPLES / "controller/provisioning.toml").read_text()
        for before, after in (
            ('"dev"', f'"{cluster.name}"'),
            ("sqlite:////var/lib/hpresume/controller.db", self.database),
            ("[recovery]", f"lease = {lease_s}\n[recovery]"),
            ("port = 8600", f"port = {port}"),
            ("/etc/hpresume/api-keys", str(self.keys)),
            ("/var/lib/hpresume/api-secret", str(folder / "api-secret")),
            ("look_every", f"{self.checks()}\nlook_every"),
        ):
            assert before in text
            text = text.replace(before, after)
        self.config = folder / f"{name}.toml"
        self.config.write_text(text)
        self.environ = {
            **os.environ,
            "HPRESUME_DEVCLUSTER_DIR": str(base_directory()),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.keys),
            "AWS_PROFILE": "alice",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": s3,
        }
        (key_id, secret) = next(iter(load_keys(self.keys).items()))
        self.client = boto3.client(
            "sagemaker", region_name="us-east-1", endpoint_url=self.url,
            aws_access_key_id=key_id, aws_secret_access_key=secret,
            config=Config(retries={"mode": "standard", "total_max_attempts": 1}),
        )  # fmt: skip
        self._store: Store | None = None

    def checks(self) -> str:
        """Deep checks of seconds; the policy is where the nodes see it too."""
        policy = self.cluster.layout.homes / "health.toml"
        policy.write_text(
            "[cpu-stress]\nseconds = 1\n[pair-network]\nseconds = 0.3\nmin_percent = 20"
        )
        words = [sys.executable, "-m", "hpresume", "deep-check", "--policy", str(policy)]
        return f"deep_check = {json.dumps(words)}\ncheck_wait = 1.0"

    def launch(self, *before: str) -> subprocess.Popen[bytes]:
        """Start the process, by way of ``before``, and do not wait for it."""
        line = [*before, sys.executable, "-m", "hpresume", "controller", "--config"]
        with open(self.folder / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(
                [*line, str(self.config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environ,
            )  # fmt: skip
        return self.process

    def start(self, *before: str) -> subprocess.Popen[bytes]:
        """Start the process and wait until its API listens."""
        said = self.log().count(LISTENS) + 1
        process = self.launch(*before)
        self.wait(lambda: self.log().count(LISTENS) >= said, "the API does not listen", 30)
        return process

    def log(self) -> str:
        path = self.folder / f"{self.name}.log"
        return path.read_text() if path.exists() else ""

    def wait(self, condition: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
        try:
            wait_for(condition, time.monotonic() + timeout, what)
        except Exception as error:
            raise AssertionError(f"{what}\n{self.log()[-4000:]}") from error

    def aws(self, *arguments: str) -> Any:
        aws = Path(sys.executable).with_name("aws")
        code = "import sys; from awscli.clidriver import main; sys.exit(main())"
        command = [str(aws)] if aws.exists() else [sys.executable, "-c", code]
        done = subprocess.run(
            [*command, "sagemaker", *arguments, "--endpoint-url", self.url, "--output", "json"],
            env=self.environ, cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def cli(self, *argv: str) -> Any:
        line = [sys.executable, "-m", "hpresume", *argv, "--config", str(self.config), "--json"]
        done = subprocess.run(line, env=self.environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def store(self) -> Store:
        """The database that the instances have, opened here too."""
        if self._store is None:
            self._store = open_store(self.database)
        return self._store

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def nodes(self) -> dict[str, dict[str, Any]]:
        """The workers by name; the API tells the host name as such, and its own ids."""
        with self.store().read() as session:
            rows = session.execute(NODES).mappings().all()
        return {row["name"]: dict(row) for row in rows}

    def phases(self) -> set[str]:
        """Phases of the nodes, and of recoveries that are under way."""
        with self.store().read() as session:
            found = {str(recovery.phase) for recovery in table.active(session)}
        return found | {row["phase"] for row in self.nodes().values()}

    def running(self) -> list[str]:
        return sorted(
            name for name, row in self.nodes().items()
            if row["phase"] == "running" and name.startswith(GROUP)
        )  # fmt: skip

    def partition(self, *states: str) -> list[str]:
        """The workers that sinfo shows in one of these states; in any without states.

        No worker while slurmctld is being restarted.
        """
        line = ["sinfo", "-h", "-N", "-p", "gpu-training", "-o", "%N %T"]
        done = self.cluster.exec(line).stdout.split()
        pairs = zip(done[::2], done[1::2], strict=True)
        return sorted(node for node, state in pairs if not states or state in states)

    def events(self, kind: str, node: str) -> tuple[Event, ...]:
        with self.store().read() as session:
            return events.since(session, kind=kind, node=node)

    def mark_down(self, node: str) -> None:
        """Set a crashed node DOWN before Slurm does."""
        line = ["scontrol", "update", f"nodename={node}", "state=down", f"reason={CRASHED}"]
        self.cluster.exec(line, check=True)

    def machines(self, node: str) -> list[str]:
        return [
            m.record.machine_id for m in self.cluster.machines()
            if m.record.node == node and m.condition != "gone"
        ]  # fmt: skip

    def bills(self, name: str) -> list[tuple[float, float | None]]:
        """Billing intervals of a node's machines, in order."""
        logical = self.nodes()[name]["logical_id"]
        with self.store().read() as session:
            found = session.execute(BILLS, {"id": logical}).all()
        return [(row[0], row[1]) for row in found]


@contextmanager
def fake_s3() -> Iterator[str]:
    """The bucket's address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeS3)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
