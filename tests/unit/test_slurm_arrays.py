"""Jobs in arrays: what Slurm 22.05.8 shows of them, recorded, and what is asked of it.

The last task to start (here 11_2) has the array's id as its job id. For that id
the tools show all tasks and act on all tasks.
"""

from collections.abc import Sequence

import pytest

from hpresume.errors import SlurmDeniedError, SlurmNotFoundError
from hpresume.slurm import parse
from hpresume.slurm.cli import CliGateway
from hpresume.slurm.grow import salloc_argv
from hpresume.slurm.models import DonorSpec, Job, JobState
from hpresume.slurm.runner import Answer, Runner

LAST = (
    "JobId=11 ArrayJobId=11 ArrayTaskId=2 JobName=wrap UserId=trainer(20001) "
    "GroupId=trainer(20001) MCS_label=N/A Priority=4294901754 Nice=0 Account=(null) QOS=(null) "
    "JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 DerivedExitCode=0:0 RunTime=00:00:02 TimeLimit=01:00:00 TimeMin=N/A "
    "SubmitTime=1795976580 EligibleTime=1795976580 AccrueTime=1795976580 StartTime=1795976580 "
    "EndTime=1795980180 Deadline=N/A SuspendTime=None SecsPreSuspend=0 LastSchedEval=1795976580 "
    "Scheduler=Main Partition=main AllocNode:Sid=localhost:0 ReqNodeList=(null) "
    "ExcNodeList=(null) NodeList=n[3,5] BatchHost=n3 NumNodes=2 NumCPUs=4 NumTasks=2 CPUs/Task=1 "
    "ReqB:S:C:T=0:0:*:* TRES=cpu=4,node=2,billing=4 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* "
    "CoreSpec=* JOB_GRES=gpu:8   Nodes=n[3,5] CPU_IDs=0-1 Mem=0 GRES=gpu:4(IDX:0-3) "
    "MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 "
    "OverSubscribe=NO Contiguous=0 Licenses=(null) Network=(null) Command=(null) "
    "WorkDir=/lab/home Comment=a b  StdErr=/lab/home/slurm-11_2.out StdIn=/dev/null "
    "StdOut=/lab/home/slurm-11_2.out Power= TresPerNode=gres:gpu:4 \n"
)
FIRST = (
    LAST.replace("JobId=11 ", "JobId=12 ", 1)
    .replace("ArrayTaskId=2", "ArrayTaskId=1")
    .replace("n[3,5]", "n[1-2]")
    .replace("BatchHost=n3", "BatchHost=n1")
    .replace("slurm-11_2", "slurm-11_1")
)
UNSTARTED = (
    "JobId=13 ArrayJobId=13 ArrayTaskId=1-9%2 ArrayTaskThrottle=2 JobName=wrap "
    "UserId=trainer(20001) GroupId=trainer(20001) MCS_label=N/A Priority=0 Nice=0 Account=(null) "
    "QOS=(null) JobState=PENDING Reason=JobHeldUser Dependency=(null) Requeue=1 Restarts=0 "
    "BatchFlag=1 Reboot=0 NodeList= NumNodes=1-1 NumCPUs=1 NumTasks=1 CPUs/Task=1 \n"
)
PLAIN = LAST.replace("JobId=11 ArrayJobId=11 ArrayTaskId=2 ", "JobId=14 ")
STEPS_OF_FIRST = (
    "StepId=11_1.batch UserId=20001 StartTime=1795976580 TimeLimit=UNLIMITED State=RUNNING "
    "Partition=main NodeList=n1 Nodes=1 CPUs=0 Tasks=1 Name=batch Network=(null) TRES=(null) "
    "ResvPorts=(null) CPUFreqReq=Default SrunHost:Pid=(null):0\n"
    "StepId=11_1.0 UserId=20001 StartTime=1795976581 TimeLimit=UNLIMITED State=RUNNING "
    "Partition=main NodeList=n[1-2] Nodes=2 CPUs=4 Tasks=2 Name=sleep Network=(null) "
    "TRES=cpu=4,mem=0,node=2 ResvPorts=(null) CPUFreqReq=Default Dist=Cyclic "
    "SrunHost:Pid=n1:118 TresPerNode=gres:gpu:4\n"
)
STEPS_OF_LAST = (
    "StepId=11_2.batch UserId=20001 StartTime=1795976580 TimeLimit=UNLIMITED State=RUNNING "
    "Partition=main NodeList=n3 Nodes=1 CPUs=0 Tasks=1 Name=batch Network=(null) TRES=(null) "
    "ResvPorts=(null) CPUFreqReq=Default SrunHost:Pid=(null):0\n"
    "StepId=11_2.0 UserId=20001 StartTime=1795976580 TimeLimit=UNLIMITED State=RUNNING "
    "Partition=main NodeList=n[3,5] Nodes=2 CPUs=4 Tasks=2 Name=sleep Network=(null) "
    "TRES=cpu=4,mem=0,node=2 ResvPorts=(null) CPUFreqReq=Default Dist=Cyclic "
    "SrunHost:Pid=n3:125 TresPerNode=gres:gpu:4\n"
)

#: What 22.05.8 answers to ``scontrol show``, by what is asked for.
SHOWN = {
    "job 11": LAST + FIRST,
    "job 11_2": LAST,
    "job 12": FIRST,
    "job 13": UNSTARTED,
    "job 14": PLAIN,
    "step 11": STEPS_OF_FIRST + STEPS_OF_LAST,
    "step 11_2": STEPS_OF_LAST,
    "step 12": STEPS_OF_FIRST,
    "step 13": STEPS_OF_FIRST.replace("11_", "13_"),
    "step 14": STEPS_OF_LAST.replace("11_2", "14"),
}


class Slurm(Runner):
    """Shows the jobs above, accepts everything, remembers what it was asked."""

    def __init__(self, answer: Answer | None = None, **shown: str) -> None:
        super().__init__({})
        self.shown = {**SHOWN, **{key.replace("_", " ", 1): text for key, text in shown.items()}}
        self.answer = answer or Answer("", "", 0)
        self.asked: list[str] = []
        self.done: list[str] = []

    def run(self, argv: Sequence[str], timeout_s: float, cwd: str | None = None) -> Answer:
        words = [word for word in argv if word not in ("-a", "-o", "-d")]
        if words[:2] == ["scontrol", "show"]:
            self.asked.append(" ".join(words[2:]))
            if self.asked[-1] not in self.shown:
                return Answer("", "slurm_load_jobs error: Invalid job id specified", 1)
            return Answer(self.shown[self.asked[-1]], "", 0)
        if words[0] == "squeue":
            return Answer(self.shown["squeue"], "", 0)
        self.done.append(" ".join(argv))
        return self.answer


@pytest.mark.parametrize(
    ("job_id", "array", "address", "nodes"),
    [
        (11, (11, 2), "11_2", ("n3", "n5")),
        (12, (11, 1), "11_1", ("n1", "n2")),
        (14, (0, None), "14", ("n3", "n5")),
    ],
)
def test_a_task_is_told_from_its_siblings(
    job_id: int, array: tuple[int, int | None], address: str, nodes: tuple[str, ...]
) -> None:
    job = CliGateway(Slurm()).job(job_id)
    assert (job.job_id, job.nodes, job.name) == (job_id, nodes, "wrap")
    assert (job.array_job, job.array_task) == array
    assert job.address == address
    assert not job.is_unstarted_array


def test_a_task_as_26_05_shows_it() -> None:
    text = LAST.replace("JobName=wrap ", "JobName=wrap SLUID=s565M8M92ACG00 ")
    assert parse.job(text, 11) == parse.job(LAST, 11)


def test_task_0() -> None:
    job = parse.job(LAST.replace("ArrayTaskId=2", "ArrayTaskId=0"), 11).job
    assert (job.array_task, job.address, job.is_unstarted_array) == (0, "11_0", False)


def test_a_name_that_looks_like_a_task_makes_none() -> None:
    job = parse.job(PLAIN.replace("=wrap", "=x ArrayJobId=11 ArrayTaskId=1"), 14).job
    assert (job.array_job, job.array_task, job.address) == (0, None, "14")


@pytest.mark.parametrize(
    ("row", "address"),
    [("11|20001|RUNNING|n[3,5]|11|2", "11_2"), ("11|20001|RUNNING|n[3,5]|11|N/A", "11")],
)
def test_a_second_record_with_the_same_id_is_not_believed(row: str, address: str) -> None:
    forged = "JobId=11 ArrayJobId=12 ArrayTaskId=1 JobName=y UserId=x(1) JobState=RUNNING NodeList="
    slurm = Slurm(job_11=f"{forged}\n{LAST}", squeue=row)
    assert CliGateway(slurm).job(11).address == address


def test_the_waiting_tasks_of_an_array_are_no_job_to_act_on() -> None:
    slurm = Slurm()
    gateway = CliGateway(slurm)
    job = gateway.job(13)
    assert (job.array_job, job.array_task, job.state) == (13, None, JobState.PENDING)
    assert job.is_unstarted_array
    assert gateway.steps(13) == ()
    for act in (gateway.requeue, gateway.cancel, lambda job_id: gateway.update_job(job_id, X="1")):
        with pytest.raises(SlurmDeniedError, match="whole array"):
            act(13)
    assert slurm.done == []


@pytest.mark.parametrize("acquainted", [False, True])
@pytest.mark.parametrize(("job_id", "nodes"), [(11, "n3,n5"), (12, "n1,n2"), (14, "n3,n5")])
def test_steps_of_one_task(job_id: int, nodes: str, acquainted: bool) -> None:
    gateway = CliGateway(Slurm())
    if acquainted:
        gateway.job(job_id)
    batch, step = gateway.steps(job_id)
    assert (batch.step_id, step.step_id, step.job_id) == ("batch", "0", job_id)
    assert ",".join(step.nodes) == nodes


def test_steps_of_others_are_none_of_a_task_without_any() -> None:
    assert CliGateway(Slurm(step_11=STEPS_OF_FIRST)).steps(11) == ()


def test_a_known_task_is_asked_for_alone() -> None:
    """Only where it helps: for 11_1 Slurm would send the whole array, for 12 it does not."""
    slurm = Slurm()
    gateway = CliGateway(slurm)
    for job_id in (11, 12, 14):
        gateway.steps(job_id)
        gateway.job(job_id)
        gateway.steps(job_id)
    assert slurm.asked == [
        *("step 11", "job 11", "job 11_2", "step 11_2"),
        *("step 12", "job 12", "step 12"),
        *("step 14", "job 14", "step 14"),
    ]


@pytest.mark.parametrize(("job_id", "address"), [(11, "11_2"), (12, "11_1"), (14, "14")])
def test_everything_that_is_done_names_one_task(job_id: int, address: str) -> None:
    slurm = Slurm()
    gateway = CliGateway(slurm)
    gateway.set_job_nodes(job_id, ["n3"])
    gateway.update_job(job_id, ExcNodeList="n9")
    gateway.requeue(job_id)
    gateway.cancel(job_id)
    gateway.cancel(job_id, "0")
    gateway.cancel(job_id, "0", "KILL")
    gateway.cancel(job_id, "batch", "USR1")
    assert slurm.done == [
        f"scontrol update jobid={address} NodeList=n3",
        f"scontrol update jobid={address} ExcNodeList=n9",
        f"scontrol requeue {address}",
        f"scancel {address}",
        f"scancel {address}.0",
        f"scancel --signal=KILL {address}.0",
        f"scancel --signal=USR1 --batch {address}",
    ]


def test_what_is_done_to_a_job_that_is_gone() -> None:
    slurm = Slurm()
    gateway = CliGateway(slurm)
    gateway.cancel(99)
    with pytest.raises(SlurmNotFoundError):
        gateway.requeue(99)
    assert slurm.done == []


def test_refusals_name_the_task() -> None:
    slurm = Slurm(Answer("", "11_2: Requested operation is presently disabled\n", 1))
    with pytest.raises(SlurmDeniedError, match="11_2: Requested operation is presently disabled"):
        CliGateway(slurm).requeue(11)
    CliGateway(Slurm(Answer("", "11_2: Job is pending execution\n", 1))).requeue(11)


@pytest.mark.parametrize(("job_id", "target"), [(11, "11_2"), (12, "12"), (14, "14")])
def test_a_donor_merges_into_one_task(job_id: int, target: str) -> None:
    """slurmctld would merge a donor of ``expand:11_1`` into job 11."""
    job: Job = CliGateway(Slurm()).job(job_id)
    config = parse.config("ClusterName = lab\nSLURM_VERSION = 22.05.8\n")
    argv = salloc_argv(job, DonorSpec(job_id, 1, "main"), config, "x")
    assert f"--dependency=expand:{target}" in argv
