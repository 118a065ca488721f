"""What a gateway promises, checked on a real cluster for every backend there is.

The calls are made inside the cluster by an ordinary user; pyslurm takes part
where it is installed for the cluster's Slurm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from cluster import E2eCluster, wait_for
from remote_gateway import RemoteGateway

from hpresume.errors import (
    MissingDependencyError,
    SlurmDeniedError,
    SlurmError,
    SlurmNotFoundError,
    SlurmTimeoutError,
    UsageError,
)
from hpresume.slurm.models import DonorSpec, Job, JobState

pytestmark = pytest.mark.e2e

CLUSTER = {"nodes": 5, "gpus_per_node": 2, "cpus_per_node": 4}
TRAINER_UID = 20001


@pytest.fixture(
    params=[
        "cli",
        pytest.param(
            "pyslurm",
            marks=pytest.mark.skipif(find_spec("pyslurm") is None, reason="pyslurm not installed"),
        ),
    ]
)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def gateway(cluster: E2eCluster, backend: str) -> Iterator[RemoteGateway]:
    try:
        remote = RemoteGateway(cluster, backend)
    except AssertionError as error:
        if backend == "pyslurm" and MissingDependencyError.__name__ in str(error):
            pytest.skip("pyslurm does not fit the cluster's Slurm")
        raise
    assert remote.ready == {"cli": "CliGateway", "pyslurm": "PyslurmGateway"}[backend]
    yield remote
    remote.close()


def submit(cluster: E2eCluster, *options: str, script: str = "sleep 300", user: str = "trainer"):
    """Submit a batch job; its id."""
    argv = ["sbatch", "--parsable", *options, f"--wrap={script}"]
    return int(cluster.exec(argv, user=user, check=True).stdout)


def wait_job(gateway: RemoteGateway, job_id: int, wanted: Callable[[Job], bool]) -> Job:
    """Wait until a job is as ``wanted``."""
    deadline = time.monotonic() + 30
    while not wanted(job := gateway.job(job_id)):
        assert time.monotonic() < deadline, job
        time.sleep(0.05)
    return job


def running(cluster: E2eCluster, gateway: RemoteGateway, *options: str, **more: Any) -> Job:
    """Submit a batch job and wait until it runs."""
    job_id = submit(cluster, *options, **more)
    return wait_job(gateway, job_id, lambda job: job.state is JobState.RUNNING and not job.flags)


def wait_steps(gateway: RemoteGateway, job_id: int, step_ids: set[str]) -> None:
    deadline = time.monotonic() + 20
    while {step.step_id for step in gateway.steps(job_id)} != step_ids:
        assert time.monotonic() < deadline, gateway.steps(job_id)
        time.sleep(0.05)


def leftovers(cluster: E2eCluster) -> list[str]:
    """Resize scripts and folders of ours in the places where they could lie."""
    found = cluster.exec(
        ["sh", "-c", "ls -d slurm_job_* /slurm_job_* /tmp/slurm_job_* /tmp/hpresume-* 2>/dev/null"],
        user="trainer",
    )
    return found.stdout.split()


# --- reading -----------------------------------------------------------------


def test_config(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    config = gateway.config()
    said = cluster.exec(["scontrol", "--version"]).stdout
    major, minor, micro = config.version
    assert f" {major}.{minor:02d}.{micro}" in said
    assert config.slurmd_timeout_s == cluster.spec.slurmd_timeout
    assert config.kill_wait_s == 5
    assert config.proctrack == "proctrack/linuxproc"
    assert config.permits_expansion
    assert config.job_requeue
    assert config.gres_types == ("gpu",)
    assert not config.makes_extern_steps
    assert not config.allocates_memory
    assert config.cred_expire_s == 120


def test_nodes(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    nodes = gateway.nodes()
    assert list(nodes) == ["n1", "n2", "n3", "n4", "n5"]
    node = nodes["n3"]
    assert (node.hostname, node.cpus, node.memory_mb) == ("n3", 4, 2000)
    assert node.gres == "gpu:2"
    assert node.partitions == ("main",)
    assert node.address
    assert node.port in (0, gateway.config().slurmd_port)
    assert 0 < node.boot_time < time.time()
    assert 0 < node.slurmd_start_time <= time.time() + 1
    assert node.is_free
    assert list(gateway.nodes(["n4", "n2"])) == ["n4", "n2"]
    assert gateway.nodes([]) == {}


def test_an_unknown_node(gateway: RemoteGateway) -> None:
    with pytest.raises(SlurmNotFoundError, match="n99"):
        gateway.nodes(["n1", "n99"])


@pytest.mark.parametrize(
    ("state", "predicate"),
    [("drain", "is_draining"), ("fail", "is_failing"), ("down", "is_down")],
)
def test_a_node_out_of_service(
    cluster: E2eCluster, gateway: RemoteGateway, state: str, predicate: str
) -> None:
    reason = "Action:Replace  evidence: a = b [x] Comment=no"
    argv = ["scontrol", "update", "nodename=n2", f"state={state}", f"reason={reason}"]
    cluster.exec(argv, check=True)
    node = gateway.nodes(["n2"])["n2"]
    assert getattr(node, predicate)
    assert not node.is_usable
    assert node.reason == reason
    assert node.reason_user == "root"
    assert abs(node.reason_time - time.time()) < 10


def test_nodes_of_a_running_job(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    whole = running(cluster, gateway, "-N1", "--exclusive")
    part = running(cluster, gateway, "-N1", "-n1")
    nodes = gateway.nodes()
    assert "ALLOCATED" in nodes[whole.nodes[0]].states
    assert "MIXED" in nodes[part.nodes[0]].states
    assert nodes[whole.nodes[0]].is_usable
    assert not nodes[part.nodes[0]].is_free


def test_a_gpu_job(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    home = cluster.home()
    before = time.time()
    job = running(
        cluster, gateway, "-N2", "--exclusive", "--gres=gpu:2", "-x", "n5", "-J", "my job", "-t60"
    )
    assert (job.name, job.user_id, job.partition) == ("my job", TRAINER_UID, "main")
    assert len(job.nodes) == job.num_nodes == 2
    assert job.num_cpus == 8
    assert job.tres_gres == {"gres/gpu": 4}
    assert job.cpus_by_node == dict.fromkeys(job.nodes, 4)
    assert job.exclusive
    assert job.batch
    assert job.batch_host == job.nodes[0]
    assert job.excluded_nodes == ("n5",)
    assert job.requested_nodes == ()
    assert job.requeue
    assert job.restarts == 0
    assert before - 2 <= job.start_time <= time.time() + 1
    assert job.end_time - job.start_time == pytest.approx(3600, abs=61)
    assert job.work_dir == str(home)
    assert job.resize_time == 0.0


def test_a_job_that_was_given_gpus_unasked(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    assert running(cluster, gateway, "-N1", "--exclusive").tres_gres == {"gres/gpu": 2}
    assert running(cluster, gateway, "-N1", "-n1").tres_gres == {}


def test_a_job_without_a_time_limit_or_a_script(
    cluster: E2eCluster, gateway: RemoteGateway
) -> None:
    cluster.exec(["salloc", "--no-shell", "-N1", "-w", "n3", "-n2"], user="trainer", check=True)
    (job,) = gateway.own_jobs()
    assert (job.batch, job.batch_host, job.nodes) == (False, "", ("n3",))
    assert job.requested_nodes == ("n3",)
    assert not job.exclusive
    assert job.end_time == 0.0


def test_a_waiting_job(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    job = gateway.job(submit(cluster, "-H", "-N2", "--gpus=3", "-C", "", "--mem-per-cpu=100"))
    assert job.state is JobState.PENDING
    assert job.nodes == ()
    assert job.num_nodes == 2
    assert job.tres_gres == {"gres/gpu": 3}
    assert job.min_memory_per_cpu_mb == 100
    assert job.reason == "JobHeldUser"
    assert not job.is_over


def test_an_unknown_job(gateway: RemoteGateway) -> None:
    with pytest.raises(SlurmNotFoundError, match="Invalid job id"):
        gateway.job(4_000_000)
    assert gateway.steps(4_000_000) == ()


@pytest.mark.parametrize(
    ("script", "state"), [("exit 0", JobState.COMPLETED), ("exit 3", JobState.FAILED)]
)
def test_a_job_that_has_ended(
    cluster: E2eCluster, gateway: RemoteGateway, script: str, state: JobState
) -> None:
    job_id = submit(cluster, script=script)
    job = wait_job(gateway, job_id, lambda job: job.is_over and not job.is_completing)
    assert job.state is state
    assert 0 < job.end_time <= time.time() + 1


def test_texts_that_look_like_fields(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    forged = "x UserId=root(0) JobState=FAILED NodeList=n9"
    job = running(
        cluster, gateway, "-N1", "-w", "n4", "-J", forged, f"--comment=NodeList=n8 {forged}"
    )
    assert (job.user_id, job.nodes) == (TRAINER_UID, ("n4",))
    broken = running(cluster, gateway, "-N1", "-w", "n3", "--comment", "a\nJobId=1 NodeList=n9")
    assert (broken.user_id, broken.nodes) == (TRAINER_UID, ("n3",))


def test_own_jobs(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    mine = submit(cluster, "-N1")
    submit(cluster, "-N1", user="other")
    ended = submit(cluster, script="true")
    wait_job(gateway, ended, lambda job: job.is_over)
    array = submit(cluster, "-N1", "-H", "--array=1-2")
    jobs = gateway.own_jobs()
    assert {job.user_id for job in jobs} == {TRAINER_UID}
    ids = {job.job_id for job in jobs}
    assert mine in ids
    assert array in ids
    assert ended not in ids


def test_many_own_jobs(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    ids = {submit(cluster, "-H") for _ in range(10)}
    submit(cluster, "-H", user="other")
    assert {job.job_id for job in gateway.own_jobs()} == ids


def test_steps(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    job = running(cluster, gateway, "-N2", "-n4", script="srun -N2 -n4 -t5 -J 'a b' sleep 300")
    wait_steps(gateway, job.job_id, {"batch", "0"})
    by_id = {step.step_id: step for step in gateway.steps(job.job_id)}
    step = by_id["0"]
    assert (step.job_id, step.state, step.name) == (job.job_id, "RUNNING", "a b")
    assert (step.nodes, step.num_nodes, step.num_tasks) == (job.nodes, 2, 4)
    assert step.srun_host == job.batch_host
    assert step.srun_pid > 0
    assert step.time_limit_s == 300
    assert abs(step.start_time - time.time()) < 15
    assert by_id["batch"].nodes == (job.batch_host,)
    assert by_id["batch"].srun_pid == 0


def test_steps_of_the_tasks_of_an_array(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    """One task has the array's id; Slurm shows the steps of all tasks for it."""
    array = submit(cluster, "-N1", "--array=3-5", script="srun sleep 300")
    deadline = time.monotonic() + 30
    while len(ids := [job.job_id for job in gateway.own_jobs()]) < 3:
        assert time.monotonic() < deadline
    assert array in ids
    for job_id in ids:
        wait_steps(gateway, job_id, {"batch", "0"})
        steps = gateway.steps(job_id)
        assert len(steps) == 2
        assert {step.nodes for step in steps} == {gateway.job(job_id).nodes}
    assert {gateway.job(job_id).array_task for job_id in ids} == {3, 4, 5}


def test_expand(gateway: RemoteGateway) -> None:
    assert gateway.expand("n[1-2],a[08-10],r[1-2]n[1-2]") == (
        *("n1", "n2", "a08", "a09", "a10"),
        *("r1n1", "r1n2", "r2n1", "r2n2"),
    )
    with pytest.raises(SlurmError):
        gateway.expand("n[")


# --- changing the size ---------------------------------------------------------


@pytest.fixture
def fresh_slurmctld(cluster: E2eCluster) -> Iterator[None]:
    """Undo what a shrunk exclusive job leaves behind.

    slurmctld goes on counting one exclusive job on the removed node, and after
    every further one keeps all jobs off it until the node's next ping.
    """
    yield
    cluster.restart_daemon("slurmctld")


@pytest.mark.usefixtures("fresh_slurmctld")
def test_shrinking_a_gpu_job(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    job = running(cluster, gateway, "-N3", "--exclusive", "--gres=gpu:2")
    kept = (job.nodes[0], job.nodes[2])
    gateway.set_job_nodes(job.job_id, kept)
    after = gateway.job(job.job_id)
    assert (after.nodes, after.state) == (kept, JobState.RUNNING)
    assert after.tres_gres == {"gres/gpu": 4}
    assert after.resize_time > 0
    assert leftovers(cluster) == []


def test_what_cannot_be_shrunk(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    job = running(cluster, gateway, "-N2")
    with pytest.raises(SlurmDeniedError, match=f"batch host {job.batch_host}"):
        gateway.set_job_nodes(job.job_id, [job.nodes[1]])
    with pytest.raises(SlurmNotFoundError, match="no node n99"):
        gateway.set_job_nodes(job.job_id, [*job.nodes, "n99"])
    with pytest.raises(UsageError):
        gateway.set_job_nodes(job.job_id, [])
    theirs = submit(cluster, "-N2", user="other")
    theirs_job = wait_job(gateway, theirs, lambda job: job.state is JobState.RUNNING)
    with pytest.raises(SlurmDeniedError):
        gateway.set_job_nodes(theirs, theirs_job.nodes[:1])
    assert gateway.job(job.job_id).nodes == job.nodes
    assert leftovers(cluster) == []


def test_shrinking_twice(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    """Refused at once, not after Slurm's five seconds, where Slurm cannot do it."""
    job = running(cluster, gateway, "-N3")
    gateway.set_job_nodes(job.job_id, job.nodes[:2])
    if gateway.config().resizes_jobs_once:
        with pytest.raises(SlurmDeniedError, match="slurmdbd"):
            gateway.set_job_nodes(job.job_id, job.nodes[:1])
        assert gateway.call_s < 2
    else:
        gateway.set_job_nodes(job.job_id, job.nodes[:1])
        assert gateway.job(job.job_id).nodes == job.nodes[:1]


def donor(job: Job, num_nodes: int = 1, **fields: Any) -> DonorSpec:
    defaults = {"partition": job.partition, "cpus": 2 * num_nodes}
    return DonorSpec(job.job_id, num_nodes, **(defaults | fields))


def test_growing(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    job = running(cluster, gateway, "-N2", "--ntasks-per-node=2")
    gateway.set_job_nodes(job.job_id, job.nodes[:1])
    new = gateway.grow_job(donor(job, exclude=(job.nodes[1],)), 20)
    assert len(new) == 1
    assert new[0] not in job.nodes
    after = gateway.job(job.job_id)
    assert set(after.nodes) == {job.nodes[0], *new}
    assert after.num_cpus == 4
    assert [own.job_id for own in gateway.own_jobs()] == [job.job_id]
    ran = cluster.exec(
        ["srun", f"--jobid={job.job_id}", "-N2", "-n4", "hostname"], user="trainer", check=True
    )
    assert sorted(ran.stdout.split()) == sorted([*after.nodes] * 2)
    assert leftovers(cluster) == []


def test_growing_by_two_nodes(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    job = running(cluster, gateway, "-N1", "-n1", "-c4")
    new = gateway.grow_job(donor(job, 2, cpus=8), 20)
    assert set(gateway.job(job.job_id).nodes) == {*job.nodes, *new}
    assert gateway.job(job.job_id).num_cpus == 12


def test_growing_waits_for_nodes_and_gives_up_in_time(
    cluster: E2eCluster, gateway: RemoteGateway
) -> None:
    job = running(cluster, gateway, "-N1", "--ntasks-per-node=2")
    running(cluster, gateway, "-N4", "--exclusive", user="other")
    with pytest.raises(SlurmTimeoutError, match="came free in time"):
        gateway.grow_job(donor(job), 2)
    assert gateway.call_s < 5
    assert [own.job_id for own in gateway.own_jobs()] == [job.job_id]
    assert leftovers(cluster) == []


def test_growing_gets_nodes_that_come_free(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    job = running(cluster, gateway, "-N1", "--ntasks-per-node=2")
    blocker = running(cluster, gateway, "-N4", "--exclusive", user="other")
    gateway.start("grow_job", donor(job), 40)
    time.sleep(1)
    cluster.exec(["scancel", str(blocker.job_id)])
    (new,) = gateway.result()
    assert new in blocker.nodes


@pytest.mark.parametrize("options", [("--gres=gpu:1",), ("--exclusive",)], ids=["gpu", "exclusive"])
def test_a_job_with_gpus_cannot_grow(
    cluster: E2eCluster, gateway: RemoteGateway, options: tuple[str, ...]
) -> None:
    job = running(cluster, gateway, "-N1", *options)
    with pytest.raises(SlurmDeniedError, match="cannot grow"):
        gateway.grow_job(donor(job), 5)
    assert gateway.call_s < 2
    assert [own.job_id for own in gateway.own_jobs()] == [job.job_id]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"partition": "nowhere"}, SlurmNotFoundError),
        ({"features": "nosuchfeature"}, SlurmError),
        ({"reservation": "nosuchreservation"}, SlurmNotFoundError),
    ],
    ids=["partition", "feature", "reservation"],
)
def test_a_donor_that_cannot_be(
    cluster: E2eCluster, gateway: RemoteGateway, fields: dict[str, str], kind: type[SlurmError]
) -> None:
    job = running(cluster, gateway, "-N1", "-n2")
    with pytest.raises(kind):
        gateway.grow_job(donor(job, **fields), 5)
    assert [own.job_id for own in gateway.own_jobs()] == [job.job_id]
    assert leftovers(cluster) == []


@pytest.mark.parametrize("signal_number", [2, 9], ids=["INT", "KILL"])
def test_a_donor_does_not_outlive_who_wants_it(
    cluster: E2eCluster, backend: str, gateway: RemoteGateway, signal_number: int
) -> None:
    job = running(cluster, gateway, "-N1", "-n2")
    running(cluster, gateway, "-N4", "--exclusive", user="other")
    doomed = RemoteGateway(cluster, backend)
    doomed.start("grow_job", donor(job), 60)
    deadline = time.monotonic() + 10
    while len(gateway.own_jobs()) != 2:
        assert time.monotonic() < deadline
    cluster.send_signal(doomed.process, signal_number)
    if signal_number == 2:
        with pytest.raises(KeyboardInterrupt):
            doomed.result()
        doomed.close()
    else:
        doomed.process.wait(timeout=10)
    deadline = time.monotonic() + 10
    while len(gateway.own_jobs()) != 1:
        assert time.monotonic() < deadline, gateway.own_jobs()
        time.sleep(0.05)
    assert leftovers(cluster) == []
    assert cluster.exec(["pgrep", "salloc"]).stdout == ""


# --- requeue, update, cancel -----------------------------------------------------


def test_requeue(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    job = running(cluster, gateway, "-N2", "--requeue")
    gateway.requeue(job.job_id)
    waits = wait_job(gateway, job.job_id, lambda job: job.state is JobState.PENDING)
    assert not waits.is_over
    settled = wait_job(gateway, job.job_id, lambda job: not job.is_completing)
    assert (settled.state, settled.restarts) == (JobState.PENDING, 1)
    gateway.requeue(job.job_id)


def test_a_requeued_job_on_a_dead_node_waits_and_is_not_over(
    cluster: E2eCluster, gateway: RemoteGateway
) -> None:
    job = running(cluster, gateway, "-N2", "--requeue", "-t60")
    cluster.crash(job.nodes[1])
    gateway.requeue(job.job_id)
    for _ in range(5):
        seen = gateway.job(job.job_id)
        assert (seen.state, seen.is_completing) == (JobState.PENDING, True)
        time.sleep(0.2)


def test_a_cancelled_job_on_a_dead_node_is_over(
    cluster: E2eCluster, gateway: RemoteGateway
) -> None:
    """As long as the exit code is not known, Slurm does not show how it ended."""
    job = running(cluster, gateway, "-N2", "--requeue", "-t60")
    time.sleep(1.1)
    cluster.crash(job.nodes[1])
    gateway.cancel(job.job_id)
    for _ in range(5):
        seen = gateway.job(job.job_id)
        assert seen.state in (JobState.CANCELLED, JobState.COMPLETED)
        assert seen.is_completing
        assert seen.is_over
        time.sleep(0.2)


def test_what_cannot_be_requeued(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    fixed = running(cluster, gateway, "-N1", "--no-requeue")
    assert not fixed.requeue
    with pytest.raises(SlurmDeniedError, match="disabled"):
        gateway.requeue(fixed.job_id)
    cluster.exec(["salloc", "--no-shell", "-N1"], user="trainer", check=True)
    shell = next(job for job in gateway.own_jobs() if not job.batch)
    with pytest.raises(SlurmDeniedError, match="batch"):
        gateway.requeue(shell.job_id)
    with pytest.raises(SlurmNotFoundError):
        gateway.requeue(4_000_000)


def test_update(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    job = gateway.job(submit(cluster, "-H", "-N3"))
    gateway.update_job(job.job_id, JobName="a b=c", ExcNodeList="n1,n2", NumNodes="2")
    after = gateway.job(job.job_id)
    assert (after.name, after.excluded_nodes, after.num_nodes) == ("a b=c", ("n1", "n2"), 2)
    gateway.update_job(job.job_id, ExcNodeList="")
    assert gateway.job(job.job_id).excluded_nodes == ()
    with pytest.raises(SlurmNotFoundError):
        gateway.update_job(4_000_000, JobName="x")
    theirs = submit(cluster, "-H", user="other")
    with pytest.raises(SlurmDeniedError):
        gateway.update_job(theirs, JobName="x")
    assert leftovers(cluster) == []


def test_cancel_a_step(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    job = running(cluster, gateway, "-N1", script="srun sleep 300; sleep 300")
    wait_steps(gateway, job.job_id, {"batch", "0"})
    gateway.cancel(job.job_id, "0")
    wait_steps(gateway, job.job_id, {"batch"})
    gateway.cancel(job.job_id, "0")
    gateway.cancel(job.job_id, "17")
    assert gateway.job(job.job_id).state is JobState.RUNNING


@pytest.mark.parametrize("step", ["0", "batch"])
def test_signal_a_step(cluster: E2eCluster, gateway: RemoteGateway, step: str) -> None:
    got, ready = cluster.home() / f"got-{step}", cluster.home() / f"ready-{step}"
    for path in (got, ready):
        path.unlink(missing_ok=True)
    trap = f"trap 'touch {got}' USR1; touch {ready}; while :; do sleep 0.1; done"
    script = trap if step == "batch" else f'srun bash -c "{trap}"'
    job = running(cluster, gateway, "-N1", script=script)
    deadline = time.monotonic() + 15
    while not ready.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    gateway.cancel(job.job_id, step, "USR1")
    while not got.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert gateway.job(job.job_id).state is JobState.RUNNING


def test_cancel_a_job(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    job = running(cluster, gateway, "-N1")
    gateway.cancel(job.job_id)
    wait_job(gateway, job.job_id, lambda job: job.state is JobState.CANCELLED)
    gateway.cancel(job.job_id)
    gateway.cancel(4_000_000)
    theirs = submit(cluster, user="other")
    with pytest.raises(SlurmDeniedError):
        gateway.cancel(theirs)


# --- job arrays: nothing that is done to one task reaches another --------------------


def tasks(cluster: E2eCluster, gateway: RemoteGateway, *options: str, **more: Any) -> list[Job]:
    """Start an array of two tasks: the last one, which has the array's id, and the other."""
    array = submit(cluster, "--array=0-1", *options, **more)
    ids = [array, array + 1]
    jobs = [wait_job(gateway, i, lambda job: job.state is JobState.RUNNING) for i in ids]
    assert [(job.array_job, job.array_task) for job in jobs] == [(array, 1), (array, 0)]
    return jobs


@pytest.mark.usefixtures("fresh_slurmctld")
@pytest.mark.parametrize("hit", [0, 1], ids=["last", "other"])
def test_one_task_is_shrunk_updated_and_requeued(
    cluster: E2eCluster, gateway: RemoteGateway, hit: int
) -> None:
    jobs = tasks(cluster, gateway, "-N2", "--exclusive", "--gres=gpu:2")
    job, other = jobs[hit], jobs[1 - hit]
    gateway.set_job_nodes(job.job_id, job.nodes[:1])
    assert gateway.job(job.job_id).nodes == job.nodes[:1]
    assert gateway.job(other.job_id) == other
    gateway.requeue(job.job_id)
    wait_job(gateway, job.job_id, lambda job: job.state is JobState.PENDING)
    wait_job(gateway, job.job_id, lambda job: not job.is_completing)
    gateway.requeue(job.job_id)
    gateway.update_job(job.job_id, ExcNodeList="n5")
    assert gateway.job(job.job_id).excluded_nodes == ("n5",)
    assert gateway.job(job.job_id).restarts == 1
    assert gateway.job(other.job_id) == other


@pytest.mark.parametrize("hit", [0, 1], ids=["last", "other"])
def test_one_task_is_cancelled(cluster: E2eCluster, gateway: RemoteGateway, hit: int) -> None:
    # slurmctld lists a step before its tasks run, and a signal would find nobody then.
    step = "touch task-runs.$SLURM_JOB_ID; exec sleep 300"
    jobs = tasks(cluster, gateway, "-N1", script=f"srun bash -c '{step}'; sleep 300")
    job, other = jobs[hit], jobs[1 - hit]
    for each in jobs:
        wait_steps(gateway, each.job_id, {"batch", "0"})
        mark = cluster.home() / f"task-runs.{each.job_id}"
        wait_for(mark.exists, time.monotonic() + 30, f"the step of {each.job_id} does not run")
    gateway.cancel(job.job_id, "0", "KILL")
    wait_steps(gateway, job.job_id, {"batch"})
    gateway.cancel(job.job_id, "0")
    gateway.cancel(job.job_id)
    wait_job(gateway, job.job_id, lambda job: job.is_over)
    gateway.cancel(job.job_id)
    assert gateway.job(other.job_id) == other
    assert {step.step_id for step in gateway.steps(other.job_id)} == {"batch", "0"}


@pytest.mark.parametrize("hit", [0, 1], ids=["last", "other"])
def test_one_task_grows(cluster: E2eCluster, gateway: RemoteGateway, hit: int) -> None:
    jobs = tasks(cluster, gateway, "-N1", "-n2")
    job, other = jobs[hit], jobs[1 - hit]
    (new,) = gateway.grow_job(donor(job), 20)
    assert set(gateway.job(job.job_id).nodes) == {*job.nodes, new}
    assert gateway.job(other.job_id) == other


def test_the_waiting_tasks_of_an_array_are_no_job(
    cluster: E2eCluster, gateway: RemoteGateway
) -> None:
    array = gateway.job(submit(cluster, "-H", "-N1", "--array=0-3%2"))
    assert (array.array_job, array.array_task) == (array.job_id, None)
    assert gateway.steps(array.job_id) == ()
    with pytest.raises(SlurmDeniedError, match="whole array"):
        gateway.cancel(array.job_id)


# --- when Slurm is not there -------------------------------------------------------


def test_a_restart_of_slurmctld_is_waited_for(cluster: E2eCluster, gateway: RemoteGateway) -> None:
    job = running(cluster, gateway, "-N2")
    cluster.exec(["pkill", "-TERM", "-x", "slurmctld"], check=True)
    gateway.start("job", job.job_id)
    time.sleep(1.5)
    cluster.restart_daemon("slurmctld")
    assert gateway.result().nodes == job.nodes


def test_a_silent_slurmctld_is_bounded_in_time(cluster: E2eCluster) -> None:
    code = (
        "import time; from hpresume.slurm.cli import CliGateway; "
        "from hpresume.errors import SlurmTransientError\n"
        "began = time.monotonic()\n"
        "try: CliGateway(read_timeout_s=2).job(1)\n"
        "except SlurmTransientError as error: print(time.monotonic() - began)\n"
    )
    remote = RemoteGateway(cluster)
    cluster.exec(["pkill", "-STOP", "-x", "slurmctld"], check=True)
    try:
        argv = [remote.interpreter, "-c", code]
        took = cluster.exec(argv, user="trainer", env=remote.environment, check=True).stdout
    finally:
        cluster.exec(["pkill", "-CONT", "-x", "slurmctld"], check=True)
        remote.close()
    assert 1.9 < float(took) < 3


def test_variables_of_the_users_shell_change_nothing(cluster: E2eCluster) -> None:
    job_id = submit(cluster, "-H")
    env = {
        "SQUEUE_FORMAT": "%j",
        "SQUEUE_STATES": "RUNNING",
        "SLURM_TIME_FORMAT": "relative",
        "SLURM_CLUSTERS": "nowhere",
        "SLURM_JOB_ID": "4000000",
        "SCONTROL_FEDERATION": "1",
        "SALLOC_PARTITION": "nowhere",
        "LC_ALL": "tr_TR.UTF-8",
    }
    remote = RemoteGateway(cluster, env=env)
    try:
        assert [job.job_id for job in remote.own_jobs()] == [job_id]
        assert remote.nodes()["n1"].boot_time > 1e9
    finally:
        remote.close()
