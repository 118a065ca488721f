"""The same job, steps and node as 24.11.5 and 26.05.5 print them, recorded."""

import pytest

from hpresume.slurm import parse
from hpresume.slurm.models import Job, JobState

JOBS = {
    "24.11": (
        "JobId=8 JobName=wrap UserId=trainer(4242) GroupId=trainer(4242) MCS_label=N/A Priority=1 "
        "Nice=0 Account=(null) QOS=(null) JobState=RUNNING Reason=None Dependency=(null) "
        "Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 DerivedExitCode=0:0 "
        "RunTime=00:00:04 TimeLimit=01:00:00 TimeMin=N/A SubmitTime=1795975972 "
        "EligibleTime=1795975972 AccrueTime=1795975972 StartTime=1795975972 EndTime=1795979572 "
        "Deadline=N/A SuspendTime=None SecsPreSuspend=0 LastSchedEval=1795975972 Scheduler=Main "
        "Partition=main AllocNode:Sid=0.0.0.0:0 ReqNodeList=(null) ExcNodeList=n5 "
        "NodeList=n[1-2] BatchHost=n1 NumNodes=2 NumCPUs=8 NumTasks=2 CPUs/Task=1 "
        "ReqB:S:C:T=0:0:*:* ReqTRES=cpu=2,mem=4000M,node=2,billing=2 "
        "AllocTRES=cpu=8,node=2,billing=8 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* "
        "JOB_GRES=gpu:4   Nodes=n[1-2] CPU_IDs=0-3 Mem=0 GRES=gpu:2(IDX:0-1) MinCPUsNode=1 "
        "MinMemoryNode=0 MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=NO "
        "Contiguous=0 Licenses=(null) Network=(null) Command=(null) WorkDir=/lab/home "
        "Comment=a b=c  StdErr=/lab/home/slurm-8.out StdIn=/dev/null "
        "StdOut=/lab/home/slurm-8.out TresPerNode=gres/gpu:2 "
    ),
    "26.05": (
        "JobId=8 JobName=wrap SLUID=sBR9M8M84XJY00 UserId=trainer(4242) GroupId=trainer(4242) "
        "MCS_label=N/A Priority=1 Nice=0 Account=(null) QOS=(null) JobState=RUNNING Reason=None "
        "Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 "
        "DerivedExitCode=0:0 RunTime=00:00:08 TimeLimit=01:00:00 TimeMin=N/A "
        "SubmitTime=1795975972 EligibleTime=1795975972 AccrueTime=1795975972 "
        "StartTime=1795975972 EndTime=1795979572 Deadline=N/A SuspendTime=None SecsPreSuspend=0 "
        "LastSchedEval=1795975972 Scheduler=Backfill Partition=main AllocNode:Sid=0.0.0.0:0 "
        "ReqNodeList=(null) ExcNodeList=n5 NodeList=n[1-2] BatchHost=n1 NumNodes=2 NumCPUs=8 "
        "NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:* ReqTRES=cpu=2,mem=4000M,node=2,billing=2 "
        "AllocTRES=cpu=8,node=2,billing=8 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* "
        "JOB_GRES=gpu:4 Nodes=n[1-2] CPU_IDs=0-3 Mem=0 GRES=gpu:2(IDX:0-1) MinCPUsNode=1 "
        "MinMemoryNode=0 MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=NO "
        "Exclusive=NODE Contiguous=0 Licenses=(null) LicensesAlloc=(null) Network=(null) "
        "Command=(null) SubmitLine=sbatch --parsable -N2 --exclusive --gres=gpu:2 "
        '--comment=a b=c -t 60 -x n5 --wrap srun -J "a b" sleep 300 WorkDir=/lab/home '
        "Comment=a b=c StdErr= StdIn=/dev/null StdOut=/lab/home/slurm-8.out "
        "TresPerNode=gres/gpu:2"
    ),
}
STEPS = (
    "StepId=8.batch UserId=4242 StartTime=1795975972 TimeLimit=UNLIMITED State=RUNNING "
    "Partition=main NodeList=n1 Nodes=1 CPUs=0 Tasks=1 Name=batch Network=(null) TRES=(null) "
    "ResvPorts=(null) CPUFreqReq=Default SrunHost:Pid=(null):0\n"
    "StepId=8.0 UserId=4242 StartTime=1795975973 TimeLimit=UNLIMITED State=RUNNING "
    "Partition=main NodeList=n[1-2] Nodes=2 CPUs=8 Tasks=2 Name=a b Network=(null) "
    "TRES=cpu=8,mem=0,node=2 ResvPorts=(null) CPUFreqReq=Default Dist=Cyclic "
    "SrunHost:Pid=n1:762 TresPerNode=gres/gpu:2\n"
)
NODE = (
    "NodeName=n4 Arch=x86_64 CoresPerSocket=1  CPUAlloc=4 CPUEfctv=4 CPUTot=4 CPULoad=2.41 "
    "AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:2 NodeAddr=10.77.0.14 "
    "NodeHostName=n4 Version=26.05.5 OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC  RealMemory=2000 "
    "AllocMem=0 FreeMem=21963 Sockets=4 Boards=1 State=IDLE+FAIL ThreadsPerCore=1 TmpDisk=0 "
    "Weight=1 Owner=N/A MCS_label=N/A Partitions=main  BootTime=1795971645 "
    "SlurmdStartTime=1795975934 LastBusyTime=1795975958 ResumeAfterTime=None "
    "SuspendTime=INFINITE CfgTRES=cpu=4,mem=2000M,billing=4 AllocTRES=cpu=4 CurrentWatts=0 "
    "AveWatts=0 Reason=Action:Reboot  x [root@1795975976]"
)


@pytest.mark.parametrize("release", JOBS)
def test_the_same_job_in_every_release(release: str) -> None:
    text = parse.job(JOBS[release], 8)
    assert text.forged == frozenset()
    assert text.job == Job(
        job_id=8,
        state=JobState.RUNNING,
        name="wrap",
        user_id=4242,
        partition="main",
        nodes=("n1", "n2"),
        num_nodes=2,
        num_cpus=8,
        num_tasks=2,
        excluded_nodes=("n5",),
        batch=True,
        batch_host="n1",
        alloc_host="0.0.0.0",
        requeue=True,
        start_time=1795975972.0,
        end_time=1795979572.0,
        exclusive=True,
        tres_gres={"gres/gpu": 4},
        work_dir="/lab/home",
        cpus_by_node={"n1": 4, "n2": 4},
    )


def test_steps() -> None:
    batch, step = parse.steps(STEPS, 8)
    assert (batch.step_id, batch.nodes, batch.srun_pid) == ("batch", ("n1",), 0)
    assert (step.step_id, step.nodes, step.name) == ("0", ("n1", "n2"), "a b")
    assert (step.srun_host, step.srun_pid) == ("n1", 762)


def test_node() -> None:
    node = parse.nodes(NODE)["n4"]
    assert node.states == {"IDLE", "FAIL"}
    assert node.reason == "Action:Reboot  x"
    assert (node.reason_user, node.reason_time) == ("root", 1795975976.0)
    assert (node.boot_time, node.slurmd_start_time) == (1795971645.0, 1795975934.0)
    assert (node.gres, node.partitions) == ("gpu:2", ("main",))
