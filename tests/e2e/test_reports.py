"""The controller and auto-resume jobs: lost batch hosts, kept places, reports about nodes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import E2eCluster
from reporting import URL, Guardian
from steps import Run, nodes

from hpresume.slurm.nodeset import expand

pytestmark = pytest.mark.e2e

# SlurmdTimeout and the lifetime of credentials are Slurm's defaults: 300 s and 120 s.
CLUSTER = {"nodes": 5, "gpus_per_node": 4, "plugin": True}
RUN_ALONE = True

PROTECTED = "srun --auto-resume=1 --gres=gpu:4 {rank}; echo code=$?"
GPUS = ("--exclusive", "--gres=gpu:4")

#: From the crash to the last rank of the next attempt (s). Slurm's own times are minutes; the
#: waits of slurmstepd for the srun of a lost batch host, without the plugin, 14 s and more.
SOON_S = 15.0

#: The first attempt's ranks, once told to, have more to print than is read.
LOUD = """if [ "$HPRESUME_ATTEMPT" = 1 ]; then
    (until [ -e "$RUN_DIR/loud" ]; do sleep 0.1; done; head -c 20000000 /dev/zero | tr '\\0' x) &
fi
"""


@pytest.fixture
def guardian(cluster: E2eCluster, tmp_path: Path) -> Iterator[Guardian]:
    made = Guardian(cluster, tmp_path)
    made.start()
    yield made
    made.end()
    print(made.log())


def started(
    guardian: Guardian, *options: str, ranks: int = 3, on_up: str = ""
) -> tuple[Run, list[str]]:
    """A protected GPU job that the controller knows; its nodes."""
    run = Run(guardian.cluster, HPRESUME_CONTROLLER=URL)
    run.write("on_up.sh", on_up)
    run.batch(PROTECTED, f"-N{ranks}", *GPUS, *options)
    first = nodes(run.wait_up(1, ranks))
    run.wait_watched(1)
    guardian.wait_guarded(run.job_id)
    for node in first:
        run.wait(lambda node=node: beats(guardian.cluster, node), 20, f"no heartbeat on {node}")
    return run, first


def beats(cluster: E2eCluster, node: str) -> bool:
    """Whether the watch agent runs there."""
    return bool(cluster.exec(["pgrep", "-u", "trainer", "-f", "resume/agent.py"], node).stdout)


def plain_job(guardian: Guardian, count: int, user: str = "trainer") -> tuple[int, list[str]]:
    """A job that only holds nodes; its id and they."""
    cluster = guardian.cluster
    argv = ["sbatch", "--parsable", f"-N{count}", "--exclusive", "--requeue", "--output=/dev/null"]
    done = cluster.exec([*argv, "--wrap=sleep 600"], user=user, cwd="/tmp", check=True)
    job_id = int(done.stdout)
    asked = ["squeue", "-h", f"-j{job_id}", "-tR", "-o%N"]
    guardian.wait(lambda: bool(cluster.exec(asked).stdout.strip()), "the job does not start")
    return job_id, list(expand(cluster.exec(asked).stdout.strip()))


def test_loss_of_the_batch_host(guardian: Guardian) -> None:
    run, first = started(guardian)
    host = run.job_nodes()[0]
    said = run.wait_output("the controller watches")
    assert f"the controller watches {host}, which runs the batch script: after its loss" in said
    assert "the job runs again in about 10 s" in said
    # Whoever waits already gets none of the places of the job in between.
    rival = Run(guardian.cluster)
    rival.batch("srun {rank}", "-N3", *GPUS)
    # slurmd is not bothered while its host answers otherwise.
    log = (guardian.cluster.layout.logs / f"slurmd-{host}.log").read_text()
    assert "Zero Bytes" not in log
    crashed = time.time()
    guardian.cluster.crash(host)
    second = run.wait_up(2, 3)
    took = max(u.t for u in second) - crashed
    print(f"loss of the batch host: training again after {took:.1f} s")
    assert took < SOON_S
    again = nodes(second)
    assert host not in again
    assert set(first) - {host} < set(again)
    assert not rival.ups()
    guardian.wait_event("return-ended", f"job {run.job_id}: it runs again")
    assert guardian.reservations() == []
    assert "Reason=Not responding: hpresume: lost with the script" in guardian.node(host)
    rival.stop()
    guardian.cluster.exec(["scancel", str(rival.job_id)], check=True)
    out = run.finish()
    assert "Slurm started this job again: going on with attempt 2" in out
    assert "code=0" in out
    # No GPU got lost in the accounting.
    after = Run(guardian.cluster)
    after.batch("srun --gres=gpu:4 true && echo all=4", "-N4", *GPUS)
    assert "all=4" in after.wait_end()


def test_loss_of_the_batch_host_of_a_large_step_that_prints(make_cluster, tmp_path: Path) -> None:
    """Its slurmstepds report along a tree whose root is lost, and output is on its way there."""
    guardian = Guardian(make_cluster(nodes=9, gpus_per_node=4, plugin=True), tmp_path)
    guardian.start()
    try:
        run, first = started(guardian, ranks=8, on_up=LOUD)
        host = run.job_nodes()[0]
        run.write("loud", "")
        crashed = time.time()
        guardian.cluster.crash(host)
        second = run.wait_up(2, 8, timeout=120)
        took = max(u.t for u in second) - crashed
        print(f"loss of the batch host of 8 nodes that print: training again after {took:.1f} s")
        assert took < SOON_S
        assert host not in nodes(second)
        for node in set(first) - {host}:
            log = (guardian.cluster.layout.logs / f"slurmd-{node}.log").read_text()
            assert f"has ended, and {host}, where its script ran, is DOWN" in log, node
        assert "code=0" in run.finish()
    finally:
        guardian.end()


def test_gpu_job_without_spare_keeps_its_places(guardian: Guardian) -> None:
    run, first = started(guardian)
    victim = first[2]
    rival = Run(guardian.cluster)
    rival.batch("srun {rank}", "-N3", *GPUS)
    crashed = time.time()
    guardian.cluster.crash(victim)
    second = run.wait_up(2, 3)
    took = max(u.t for u in second) - crashed
    print(f"GPU requeue: training again after {took:.1f} s")
    assert took < SOON_S
    assert set(first) - {victim} < set(nodes(second))
    assert not rival.ups()
    out = run.output()
    assert "the controller keeps the job's places and brings it back" in out
    announced = guardian.wait_event("requeue-announced", f"job {run.job_id} ").message
    assert announced.endswith(f"requeued without {victim}, its places on 2 nodes are kept")
    guardian.wait_event("return-ended", f"job {run.job_id}: it runs again")
    assert guardian.reservations() == []
    # The supervisor told of the node, and the controller has looked for itself.
    guardian.wait_event("node-reported", f"{victim}: job {run.job_id}")
    guardian.wait_event("report-acted", f"{victim}: report")
    assert "State=DOWN" in guardian.node(victim)
    guardian.cluster.exec(["scancel", str(rival.job_id)], check=True)
    assert "code=0" in run.finish()


def test_a_node_that_slurmctld_miscounts_is_named(guardian: Guardian) -> None:
    """A job that shares its nodes with nobody goes on with a spare; Slurm forgets to count back."""
    cluster = guardian.cluster
    run = Run(cluster, HPRESUME_CONTROLLER=URL)
    run.batch(PROTECTED.replace("srun", "srun -N3"), "-N4", *GPUS)
    victim = nodes(run.wait_up(1, 3))[2]
    run.wait_watched(1)
    guardian.wait_guarded(run.job_id)
    run.wait(lambda: beats(cluster, victim), 20, "no heartbeat")
    cluster.crash(victim)
    run.wait_up(2, 3)
    said = guardian.wait_event("node-miscounted", f"{victim}: job {run.job_id}").message
    assert "`scontrol reconfigure` ends that" in said
    guardian.wait_event("report-acted", f"{victim}: report")
    assert "code=0" in run.finish()

    # It is so, and that ends it.
    cluster.boot(victim)
    cluster.exec(["scontrol", "update", f"nodename={victim}", "state=resume"], check=True)
    guardian.wait(lambda: cluster.node_states()[victim] == "idle", "it does not come back")
    first, second = Run(cluster), Run(cluster)
    # slurmctld notes within a second that slurmd has taken the order, and counts right if
    # all is over by then.
    first.write("on_up.sh", "trap 'sleep 2; exit' TERM")
    first.batch("srun {rank}", "-N1", f"-w{victim}", *GPUS)
    first.wait_up(0, 1)
    cluster.exec(["scancel", str(first.job_id)], check=True)
    first.wait_end()
    second.batch("true", "-N1", f"-w{victim}", *GPUS)
    state = ["squeue", "-h", f"-j{second.job_id}", "-o%T %r"]
    guardian.wait(lambda: "PENDING Resources" in cluster.exec(state).stdout, "it is given away")
    assert cluster.node_states()[victim] in ("idle", "planned")
    cluster.exec(["scontrol", "reconfigure"], check=True)
    second.wait_end()


def test_only_the_owner_of_a_running_job_is_heard(guardian: Guardian) -> None:
    job, held = plain_job(guardian, 2)
    theirs, foreign = plain_job(guardian, 1, user="other")
    blame = {"version": 1, "kind": "blames", "job": job, "node": held[1], "sign": "lost"}
    body = json.dumps(blame | {"evidence": "because I say so"}).encode()
    digest = hashlib.sha256(body).hexdigest()
    right = f"hpresume-report-1 {digest}"
    stale = guardian.credential(body, payload=right, ttl=1)
    made = time.time()

    # Credentials that are none, or not for this.
    good = guardian.credential(body)
    forged = good[:40] + ("A" if good[40] != "A" else "B") + good[41:]
    other_purpose = guardian.credential(body, payload="slurm")
    too_long = guardian.credential(body, payload=right, ttl=600)
    for credential in ("", "MUNGE:AAAA:", forged, other_purpose, too_long):
        assert guardian.post(body, credential)[0] == 401, credential
    # Another message under a good one uses that up as well.
    assert guardian.post(body.replace(b"lost", b"down"), guardian.credential(body))[0] == 401
    assert guardian.events("node-reported") == ()

    # Another's job, another's node, a node that is nobody's, a job that does not run.
    assert guardian.post(body, guardian.credential(body, "other"))[0] == 403
    free = ({"n1", "n2", "n3", "n4", "n5"} - {*held, *foreign}).pop()
    waits = guardian.cluster.exec(
        ["sbatch", "--parsable", "--hold", "-N1", "--wrap=true"], user="trainer", check=True
    )
    for wrong in (
        {"job": theirs, "node": foreign[0]},
        {"node": foreign[0]},
        {"node": free},
        {"job": int(waits.stdout)},
        {"job": 4711},
    ):
        status, words = guardian.say({**blame, "evidence": "", **wrong})
        assert status == 403, words
    for message, status in (
        (b"no JSON", 400),
        (b'{"version": 2}', 400),
        (json.dumps({**blame, "evidence": "", "sign": "ugly"}).encode(), 400),
    ):
        assert guardian.post(message, guardian.credential(message))[0] == status
    assert guardian.events("node-reported") == ()

    # A good one is taken once, and comes to nothing: the node is well.
    assert guardian.post(body, good)[0] == 200
    status, words = guardian.post(body, good)
    assert (status, "used before" in words) == (401, True)
    guardian.wait_event("report-closed", f"{held[1]}: report of job {job}: the node answers")
    guardian.wait(lambda: time.time() > made + 2.5, "time stands still")
    status, words = guardian.post(body, stale)
    assert (status, "expired" in words) == (401, True)
    assert set(guardian.cluster.node_states().values()) <= {"allocated", "idle"}
    assert all("Reason=" not in guardian.node(f"n{i}") for i in range(1, 6))


def test_an_unhealthy_node_is_checked_before_it_is_marked(guardian: Guardian) -> None:
    job, (well, sick, _) = plain_job(guardian, 3)
    (guardian.sick / f"sick-{sick}").touch()
    blame = {"kind": "blames", "job": job, "sign": "unhealthy", "evidence": "ECC errors"}
    for node in (well, sick):
        assert guardian.say({**blame, "node": node})[0] == 200
    # A check needs the node; while the job has it nothing is done.
    guardian.wait_event("node-reported", sick)
    assert "Reason=" not in guardian.node(sick)
    guardian.cluster.exec(["scancel", str(job)], check=True)
    guardian.wait_event("report-acted", f"{sick}: report")
    assert "Reason=Action:Replace [hpresume report] FAIL gpu-count" in guardian.node(sick)
    assert "State=IDLE+FAIL" in guardian.node(sick) or "State=FAIL" in guardian.node(sick)
    closed = guardian.wait_event("report-closed", f"{well}: report").message
    assert "it is healthy: good" in closed
    guardian.wait(lambda: guardian.cluster.node_states()[well] == "idle", "it is not given back")
    assert guardian.reservations() == []


def test_kept_places_are_given_up_in_every_case(cluster: E2eCluster, tmp_path: Path) -> None:
    guardian = Guardian(cluster, tmp_path, keep_places=2.0)
    left = ["users=root", "nodes=n5", "starttime=now", "duration=9", "flags=ignore_jobs"]
    create = ["scontrol", "create", "reservation", "reservationname=hpresume-keep-999", *left]
    cluster.exec(create, check=True)
    try:
        guardian.start()
        guardian.wait(lambda: guardian.reservations() == [], "one of nobody is left")
        announce = {"kind": "requeues", "run": 0, "nodes": 2, "exclude": [], "requested": []}
        job, _ = plain_job(guardian, 2)
        # More than it had, another run, another's.
        assert guardian.say({**announce, "job": job, "nodes": 3})[0] == 403
        assert guardian.say({**announce, "job": job, "run": 1})[0] == 403
        assert guardian.say({**announce, "job": job}, "other")[0] == 403
        assert guardian.reservations() == []
        # It is not requeued after all: for a while only.
        assert guardian.say({**announce, "job": job})[0] == 200
        guardian.wait_event("places-released", f"job {job}:")
        assert guardian.reservations() == []
        # Once a run.
        assert guardian.say({**announce, "job": job})[0] == 200
        assert guardian.reservations() == []
        # It is cancelled, while no controller is there.
        second, _ = plain_job(guardian, 2)
        assert guardian.say({**announce, "job": second})[0] == 200
        kept = guardian.reservations()
        guardian.kill()
        assert kept == [f"hpresume-keep-{second}"]
        cluster.exec(["scancel", str(second)], check=True)
        guardian.start()
        guardian.wait_event("return-ended", f"job {second}:")
        assert guardian.reservations() == []
    finally:
        guardian.end()


def test_requeue_where_slurm_kills_detached_processes(make_cluster, tmp_path: Path) -> None:
    """proctrack/cgroup ends the supervisor's own finisher with its job."""
    guardian = Guardian(make_cluster(nodes=4, gpus_per_node=4, plugin=True, cgroup=True), tmp_path)
    guardian.start()
    try:
        run, first = started(guardian)
        crashed = time.time()
        guardian.cluster.crash(first[2])
        second = run.wait_up(2, 3)
        took = max(u.t for u in second) - crashed
        print(f"GPU requeue under proctrack/cgroup: training again after {took:.1f} s")
        assert took < SOON_S
        assert first[2] not in nodes(second)
        assert "code=0" in run.finish()
    finally:
        guardian.end()
