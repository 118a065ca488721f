"""Texts of scontrol, recorded on real clusters, and what is read from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpresume.errors import SlurmError
from hpresume.slurm import parse, values

# Slurm 22.05.8, SLURM_TIME_FORMAT=%s.
NODE = (
    "NodeName=n6 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=2.41 "
    "AvailableFeatures=plain,old,new ActiveFeatures=plain,old Gres=(null) NodeAddr=10.77.0.16 "
    "NodeHostName=n6 Version=22.05.8 OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC  "
    "RealMemory=2000 AllocMem=0 FreeMem=20885 Sockets=4 Boards=1 State=IDLE+DRAIN "
    "ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=plain,all  "
    "BootTime=1795971644 SlurmdStartTime=1795973111 LastBusyTime=1795973491 "
    "CfgTRES=cpu=4,mem=2000M,billing=4 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 "
    "ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s "
    "Reason=disk  full: 95% = bad Comment=no [root@1795973620] Comment=c d=e"
)
NODE_PLAIN = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=4 CPUEfctv=4 CPUTot=4 CPULoad=0.83 "
    "AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:4 NodeAddr=10.77.0.11 "
    "NodeHostName=n1 Port=7001 Version=22.05.8 OS=Linux RealMemory=2000 State=ALLOCATED "
    "Partitions=main,all  BootTime=None SlurmdStartTime=None "
)
JOB = (
    "JobId=1 JobName=my  job JobState=FAILED UserId=trainer(4242) GroupId=trainer(4242) "
    "MCS_label=N/A Priority=4294901759 Nice=0 Account=(null) QOS=(null) JobState=RUNNING "
    "Reason=None Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "DerivedExitCode=0:0 RunTime=00:00:01 TimeLimit=365-00:00:00 TimeMin=N/A "
    "SubmitTime=1795972358 EligibleTime=1795972358 AccrueTime=1795972358 StartTime=1795972359 "
    "EndTime=1827508359 Deadline=N/A SuspendTime=None SecsPreSuspend=0 LastSchedEval=1795972359 "
    "Scheduler=Backfill Partition=main AllocNode:Sid=login-1:4711 ReqNodeList=n[1-2] "
    "ExcNodeList=n9 NodeList=n[1-2] BatchHost=n1 NumNodes=2 NumCPUs=8 NumTasks=2 CPUs/Task=1 "
    "ReqB:S:C:T=0:0:*:* TRES=cpu=8,node=2,billing=8 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* "
    "CoreSpec=* JOB_GRES=gpu:8   Nodes=n1 CPU_IDs=0-3 Mem=0 GRES=gpu:4(IDX:0-3)   "
    "Nodes=n2 CPU_IDs=0,2-3 Mem=0 GRES=gpu:4(IDX:0-3) MinCPUsNode=1 MinMemoryNode=1.50G "
    "MinTmpDiskNode=0 Features=[a|b]&c DelayBoot=00:00:00 Reservation=keep OverSubscribe=NO "
    "Contiguous=0 Licenses=(null) Network=(null) Command=/home/t/my job.sh "
    "WorkDir=/home/t/my dir Comment=a b=c NodeList=n7  StdErr=/home/t/slurm-1.out "
    "StdIn=/dev/null StdOut=/home/t/slurm-1.out Power= TresPerNode=gres:gpu:4 "
)
STEPS = """\
StepId=1.batch UserId=4242 StartTime=1795972359 TimeLimit=UNLIMITED State=RUNNING \
Partition=main NodeList=n1 Nodes=1 CPUs=0 Tasks=1 Name=batch Network=(null) TRES=(null) \
ResvPorts=(null) CPUFreqReq=Default SrunHost:Pid=(null):0
StepId=1.0 UserId=4242 StartTime=1795972359 TimeLimit=1-02:03:04 State=RUNNING \
Partition=main NodeList=n[1-2] Nodes=2 CPUs=8 Tasks=2 Name=x State=FAILED Network=q \
SrunHost:Pid=evil:1 Network=(null) TRES=cpu=8,mem=0,node=2 ResvPorts=(null) \
CPUFreqReq=Default Dist=Cyclic SrunHost:Pid=n1:155 TresPerNode=gres:gpu:4
StepId=1+0.extern UserId=4242 StartTime=Unknown TimeLimit=00:10:00 State=COMPLETING \
Partition=main NodeList=(null) Nodes=0 CPUs=0 Tasks=0 Name=extern Network=(null) \
SrunHost:Pid=(null):0
"""
CONFIG = """\
Configuration data as of 1795973620
AccountingStorageType   = accounting_storage/none
AuthInfo                = cred_expire=30,ttl=60
BOOT_TIME               = 1795973349
ClusterName             = lab
GresTypes               = gpu
JobRequeue              = 1
KillWait                = 5 sec
PrologFlags             = Alloc,Contain
ProctrackType           = proctrack/cgroup
SchedulerParameters     = permit_job_expansion,bf_interval=5
SelectTypeParameters    = CR_CORE_MEMORY
SlurmctldHost[0]        = ctl(10.77.0.1)
SlurmdPort              = 6818
SlurmdTimeout           = 60 sec
SLURM_VERSION           = 22.05.8

Slurmctld(primary) at ctl is UP
"""


def test_node() -> None:
    node = parse.nodes(NODE)["n6"]
    assert node.states == {"IDLE", "DRAIN"}
    assert (node.address, node.hostname, node.port) == ("10.77.0.16", "n6", 0)
    assert node.reason == "disk  full: 95% = bad Comment=no"
    assert (node.reason_user, node.reason_time) == ("root", 1795973620.0)
    assert node.comment == "c d=e"
    assert (node.boot_time, node.slurmd_start_time) == (1795971644.0, 1795973111.0)
    assert (node.cpus, node.memory_mb, node.gres) == (4, 2000, "")
    assert node.partitions == ("plain", "all")
    assert node.features == ("plain", "old")
    assert node.available_features == ("plain", "old", "new")
    assert node.is_draining
    assert not node.is_usable


def test_nodes_of_a_cluster() -> None:
    nodes = parse.nodes(f"{NODE_PLAIN}\n{NODE}\n\n")
    assert list(nodes) == ["n1", "n6"]
    assert nodes["n1"].port == 7001
    assert nodes["n1"].gres == "gpu:4"
    assert (nodes["n1"].boot_time, nodes["n1"].reason, nodes["n1"].comment) == (0.0, "", "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Reason=Action:Replace [slurm@1795973620]", "Action:Replace"),
        ("Reason=Action:Replace : Not responding [slurm@1795973620]", None),
        ("Reason=Kill task failed [root@2026-11-29T17:33:40] Comment=x", "Kill task failed"),
        ("Reason=no user known Comment=x", "no user known"),
        ("Reason=first [root@1]        second line", "first"),
        ("", ""),
    ],
)
def test_reason_of_a_node(text: str, reason: str | None) -> None:
    node = parse.nodes(f"NodeName=n1 State=DOWN {text}")["n1"]
    assert node.reason == (reason if reason is not None else "Action:Replace : Not responding")


def test_job() -> None:
    text = parse.job(JOB, 1)
    job = text.job
    assert job.name == "my  job JobState=FAILED"
    assert job.user_id == 4242
    assert job.nodes == ("n1", "n2")
    assert (job.num_nodes, job.num_cpus, job.num_tasks) == (2, 8, 2)
    assert job.requested_nodes == ("n1", "n2")
    assert job.excluded_nodes == ("n9",)
    assert (job.batch, job.batch_host) == (True, "n1")
    assert (job.alloc_host, job.alloc_sid) == ("login-1", 4711)
    assert (job.requeue, job.restarts) == (True, 2)
    assert (job.start_time, job.end_time) == (1795972359.0, 1827508359.0)
    assert job.exclusive
    assert job.tres_gres == {"gres/gpu": 8}
    assert job.cpus_by_node == {"n1": 4, "n2": 3}
    assert job.min_memory_per_node_mb == 1536
    assert job.features == "[a|b]&c"
    assert job.reservation == "keep"
    assert (job.account, job.qos, job.partition) == ("", "", "main")
    assert job.work_dir == "/home/t/my dir"
    assert job.resize_time == 0.0


def test_what_a_job_forges_is_told() -> None:
    assert parse.job(JOB, 1).forged == {"JobState", "NodeList"}
    assert parse.job(JOB.replace("JobState=FAILED ", "").replace(" NodeList=n7", ""), 1).forged == (
        frozenset()
    )
    two_lines = JOB.replace("my  job", "x\nJobId=1 UserId=root(0) JobState=RUNNING NodeList=n7")
    assert parse.job(two_lines, 1).forged == {"UserId", "JobState", "NodeList"}


def test_an_array_shows_all_its_tasks() -> None:
    other = JOB.replace("JobId=1 ", "JobId=5 ArrayJobId=1 ArrayTaskId=2 ")
    text = f"{JOB}\n{other}\n"
    assert sorted(parse.jobs(text, [1, 5, 7])) == [1, 5]
    assert parse.job(text, 5).job.job_id == 5
    with pytest.raises(SlurmError, match="job 7: cannot read"):
        parse.job(text, 7)


def test_a_waiting_job() -> None:
    text = (
        JOB.replace("JobState=RUNNING", "JobState=PENDING")
        .replace("NodeList=n[1-2] BatchHost=n1", "NodeList=(null)")
        .replace("NumNodes=2 ", "NumNodes=2-4 ")
        .replace("JOB_GRES=gpu:8   Nodes=n1 CPU_IDs=0-3 Mem=0 GRES=gpu:4(IDX:0-3)", "")
        .replace("Nodes=n2 CPU_IDs=0,2-3 Mem=0 GRES=gpu:4(IDX:0-3)", "")
        .replace("StartTime=1795972359 EndTime=1827508359", "StartTime=Unknown EndTime=Unknown")
        .replace("TimeLimit=365-00:00:00", "TimeLimit=UNLIMITED")
    )
    job = parse.job(text, 1).job
    assert (job.nodes, job.num_nodes, job.batch_host) == ((), 2, "")
    assert (job.start_time, job.end_time) == (0.0, 0.0)
    assert job.tres_gres == {"gres/gpu": 8}
    assert job.cpus_by_node == {}


@pytest.mark.parametrize(
    ("values", "gres"),
    [
        ({}, {}),
        ({"JOB_GRES": "(null)", "TRES": "cpu=8,node=2"}, {}),
        ({"JOB_GRES": "gpu:8"}, {"gres/gpu": 8}),
        ({"JOB_GRES": "gpu:a100:8,gpu:v100:2,shard:3"}, {"gres/gpu": 10, "gres/shard": 3}),
        ({"AllocTRES": "cpu=8,gres/gpu=8,gres/gpu:a100=8"}, {"gres/gpu": 8}),
        ({"AllocTRES": "(null)", "TresPerNode": "gres:gpu:4"}, {"gres/gpu": 8}),
        ({"TresPerNode": "gres/gpu:4"}, {"gres/gpu": 8}),
        ({"TresPerNode": "gres/gpu=4"}, {"gres/gpu": 8}),
        ({"TresPerNode": "gres:gpu:a100:4(S:0-1)"}, {"gres/gpu": 8}),
        ({"TresPerNode": "gres:gpu"}, {"gres/gpu": 2}),
        ({"TresPerJob": "gres:gpu:3"}, {"gres/gpu": 3}),
        ({"TresPerTask": "cpu=2,gres/gpu=1"}, {"gres/gpu": 4}),
        ({"TresPerTask": "gres:gpu:1"}, {"gres/gpu": 4}),
        ({"TRES": "cpu=4,mem=1G,node=1,billing=4"}, {}),
        ({"TresPerNode": "gres:craynetwork:0"}, {}),
    ],
)
def test_generic_resources_of_a_job(values: dict[str, str], gres: dict[str, int]) -> None:
    assert parse.job_gres(values, num_nodes=2, num_tasks=4) == gres


@pytest.mark.parametrize(
    ("old", "new", "exclusive"),
    [
        ("OverSubscribe=NO", "OverSubscribe=NO", True),
        ("OverSubscribe=NO", "OverSubscribe=OK", False),
        ("OverSubscribe=NO", "OverSubscribe=USER", False),
        # 26.05 tells them apart
        ("OverSubscribe=NO", "OverSubscribe=NO Exclusive=NO", False),
        ("OverSubscribe=NO", "OverSubscribe=NO Exclusive=NODE", True),
    ],
)
def test_exclusive(old: str, new: str, exclusive: bool) -> None:
    assert parse.job(JOB.replace(old, new), 1).job.exclusive is exclusive


def test_steps() -> None:
    batch, first, extern = parse.steps(STEPS, 1)
    assert (batch.step_id, batch.nodes, batch.srun_host, batch.srun_pid) == (
        "batch",
        ("n1",),
        "",
        0,
    )
    assert (first.step_id, first.state, first.nodes) == ("0", "RUNNING", ("n1", "n2"))
    assert (first.num_nodes, first.num_tasks) == (2, 2)
    assert first.name == "x State=FAILED Network=q SrunHost:Pid=evil:1"
    assert (first.srun_host, first.srun_pid) == ("n1", 155)
    assert first.time_limit_s == 93784
    assert (extern.job_id, extern.step_id, extern.nodes) == (1, "extern", ())
    assert (extern.start_time, extern.time_limit_s) == (0.0, 600)
    assert parse.steps("No job steps in the system\n", 1) == ()


def test_a_step_whose_name_has_an_end_of_line() -> None:
    """What comes behind the name belongs to the step all the same."""
    text = STEPS.replace("Name=x State=FAILED", "Name=x\nState=FAILED")
    assert text != STEPS
    _, first, _ = parse.steps(text, 1)
    assert first.name == "x\nState=FAILED Network=q SrunHost:Pid=evil:1"
    assert (first.state, first.srun_host, first.srun_pid) == ("RUNNING", "n1", 155)


def test_steps_of_a_job_array() -> None:
    text = STEPS.replace("StepId=1.batch", "StepId=1_3.batch").replace("StepId=1.0", "StepId=1_4.0")
    assert parse.shows_array(text, 1)
    assert not parse.shows_array(text, 3)
    assert not parse.shows_array(STEPS, 1)
    assert [step.step_id for step in parse.steps(text, 1, 4)] == ["0"]
    array = JOB.replace("JobId=1 ", "JobId=1 ArrayJobId=1 ArrayTaskId=4 ")
    assert parse.job(array, 1).job.array_task == 4
    assert parse.job(array.replace("=4 ", "=1-9%2 "), 1).job.array_task is None


def test_config() -> None:
    config = parse.config(CONFIG)
    assert config.cluster_name == "lab"
    assert config.version == (22, 5, 8)
    assert (config.slurmd_timeout_s, config.kill_wait_s, config.slurmd_port) == (60, 5, 6818)
    assert config.kills_detached_processes
    assert config.makes_extern_steps
    assert config.permits_expansion
    assert config.job_requeue
    assert config.cred_expire_s == 30
    assert config.gres_types == ("gpu",)
    assert config.allocates_memory
    assert config.resizes_jobs_once
    assert not config.constrains_devices
    assert parse.config(CONFIG + "ConstrainDevices        = yes\n").constrains_devices


@pytest.mark.parametrize(
    ("old", "new", "once"),
    [
        ("", "", True),
        ("SLURM_VERSION           = 22.05.8", "SLURM_VERSION = 24.11.5", False),
        ("accounting_storage/none", "accounting_storage/slurmdbd", False),
    ],
)
def test_who_can_resize_a_job_again(old: str, new: str, once: bool) -> None:
    assert parse.config(CONFIG.replace(old, new)).resizes_jobs_once is once


# --- anything Slurm, a user or a bug may print ---------------------------------

_FRAGMENTS = [
    "JobId=1",
    "NodeName=n1",
    "StepId=1.0",
    "State=IDLE",
    "JobState=COMPLETING",
    "UserId=t(1)",
    "NodeList=n[1-2",
    "NodeList=n[1-3]",
    "NodeList=(null)",
    "EndTime=9999999999999",
    "NumNodes=9K",
    "Mem=",
    "Nodes=n1",
    "CPU_IDs=9-1",
    "StartTime=2026-13-40T99:99:99",
    "Reason=x",
    "[root@1]",
    "Comment=[a@b]",
    "TresPerNode=gres:",
    "JOB_GRES=,,:,",
    "AllocNode:Sid=:",
    "SrunHost:Pid=:",
    "TimeLimit=-1",
    "ExitCode=:",
    "ClusterName=x",
    "SLURM_VERSION=.",
]

_words = st.one_of(
    st.text(max_size=12),
    st.sampled_from(_FRAGMENTS),
)
_texts = st.lists(_words, max_size=25).map(" ".join)


@given(_texts)
def test_no_garbage_raises_anything_but_slurm_errors(text: str) -> None:
    for prefix in (
        "",
        "NodeName=n1 State=IDLE ",
        "JobId=1 ",
        "StepId=1.0 ",
        "ClusterName = x\n",
        "JobId=1 UserId=t(1) JobState=RUNNING NodeList=n1 ",
    ):
        garbage = prefix + text
        for reader in (
            parse.nodes,
            lambda text: parse.jobs(text, [1, 2]),
            parse.config,
            values.version,
            lambda text: parse.steps(text, 1),
            lambda text: parse.job(text, 1),
        ):
            try:
                reader(garbage)
            except SlurmError:
                continue


_ALPHABET = st.characters(codec="utf-8", exclude_characters="\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")


@given(st.text(_ALPHABET, max_size=40))
def test_a_comment_changes_nothing_but_the_comment(comment: str) -> None:
    plain, written = parse.job(JOB, 1), parse.job(JOB.replace("a b=c NodeList=n7", comment), 1)
    assert written.job == plain.job
