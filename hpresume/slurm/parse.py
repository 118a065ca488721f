"""From the text of ``scontrol show …`` to the frozen views of ``models``.

The one-line form (``-o``) of 21.08 to 26.05. ``--json`` would be the better
source, but 22.05 needs a plugin for it that many installations lack, the
layout differs from release to release, and it costs three times as much.

Values that cannot hold spaces are taken by their key alone, wherever it
stands; unknown keys are ignored. Users choose some texts freely (job name,
account, comment), and may write ``NodeList=…`` into them: the first
occurrence of a key counts, and ``JobText.forged`` names the keys that occur
more than once, so that the caller can ask for them in another way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpresume.errors import SlurmError
from hpresume.slurm import nodeset
from hpresume.slurm.models import ClusterConfig, Job, Node, Step
from hpresume.slurm.states import job_state, node_states
from hpresume.slurm.values import EMPTY, count, duration, id_count, megabytes, seconds, version


def _keys(*names: str) -> re.Pattern[str]:
    alternatives = "|".join(re.escape(name) for name in names)
    return re.compile(rf"(?:^|(?<=\s))({alternatives})=(\S*)")


_NODE_KEYS = frozenset(
    {
        "NodeName",
        "NodeAddr",
        "NodeHostName",
        "Port",
        "State",
        "Partitions",
        "BootTime",
        "SlurmdStartTime",
        "CPUTot",
        "RealMemory",
        "Gres",
        "ActiveFeatures",
        "AvailableFeatures",
    }
)
#: Slurm appends who set the reason and when; the reason itself is free text.
_NODE_REASON = re.compile(r"(?:^|\s)Reason=(.*?) \[([^\s\[\]@]+)@([^\s\[\]]+)\](?=\s|$)")
_NODE_REASON_BARE = re.compile(r"(?:^|\s)Reason=(.*?)()()\s*(?=\s(?:Comment|Extra)=|$)")
_NODE_COMMENT = re.compile(r"(?:^|\s)Comment=(.*?)\s*(?=\s(?:Extra|InstanceId|ReservationName)=|$)")
_NODE_EXTRA = re.compile(r"(?:^|\s)Extra=(.*?)\s*(?=\s(?:InstanceId|ReservationName)=|$)")

#: Job fields that decide who may do what with which node.
PINNED_KEYS = ("UserId", "JobState", "NodeList")
_JOB_KEYS = _keys(
    *PINNED_KEYS,
    "Account",
    "QOS",
    "Reason",
    "Requeue",
    "Restarts",
    "BatchFlag",
    "ExitCode",
    "RunTime",
    "TimeLimit",
    "StartTime",
    "EndTime",
    "PreemptTime",
    "ResizeTime",
    "Partition",
    "AllocNode:Sid",
    "ReqNodeList",
    "ExcNodeList",
    "BatchHost",
    "NumNodes",
    "NumCPUs",
    "NumTasks",
    "TRES",
    "AllocTRES",
    "JOB_GRES",
    "MinMemoryNode",
    "MinMemoryCPU",
    "Features",
    "Reservation",
    "OverSubscribe",
    "Exclusive",
    "TresPerJob",
    "TresPerNode",
    "TresPerSocket",
    "TresPerTask",
)
#: In front of all free text, or not at all.
_JOB_ARRAY = re.compile(r"^JobId=\d+ ArrayJobId=(\d{1,10}) ArrayTaskId=(\S+)\s")
_JOB_NAME = re.compile(r"^JobId=.*?\sJobName=(.*?) (?:SLUID=|HetJobIdSet=|UserId=)")
_JOB_WORK_DIR = re.compile(
    r"\sWorkDir=(.*?)\s*(?=\s(?:AdminComment|SystemComment|Comment|Extra|StdErr|StdIn|StdOut"
    r"|SegmentSize|Switches|BurstBuffer|BurstBufferState|Power|GresEnforceBind|MailUser"
    r"|CpusPerTres|MemPerTres|TresPer[A-Z][a-z]+|TresBind|TresFreq|NtasksPerTRES"
    r"|Container|ContainerType|OOMKillStep)=|$)"
)
_JOB_LAYOUT = re.compile(r"(?:^|\s)Nodes=(\S+) CPU_IDs=(\S*) Mem=(\d*)")

_STEP_ID = re.compile(r"^StepId=\d+(?:[_+]\d+)*\.(\S+)")
_STEP_KEYS = _keys("StartTime", "TimeLimit", "State", "NodeList", "Nodes", "Tasks")
_STEP_NAME = re.compile(r"\sName=(.*) Network=", re.DOTALL)
_STEP_SRUN = re.compile(r".*\sSrunHost:Pid=(\S+):(\d+)", re.DOTALL)

_CONFIG_LINE = re.compile(r"^([A-Za-z_]+)\s*=\s?(.*)$")

# --- values ------------------------------------------------------------------


def _text(value: str) -> str:
    return "" if value in EMPTY else value


def _names(value: str) -> tuple[str, ...]:
    return nodeset.expand(value)


def _list(value: str) -> tuple[str, ...]:
    return () if value in EMPTY else tuple(item for item in value.split(",") if item)


def _first_values(pattern: re.Pattern[str], text: str) -> tuple[dict[str, str], frozenset[str]]:
    """The first value of every key, and the keys that occur more than once."""
    values: dict[str, str] = {}
    repeated = set()
    for match in pattern.finditer(text):
        if match[1] in values:
            repeated.add(match[1])
        else:
            values[match[1]] = match[2]
    return values, frozenset(repeated)


# --- nodes --------------------------------------------------------------------


def nodes(text: str) -> dict[str, Node]:
    """``scontrol -o show node``, by node name."""
    found = {}
    for line in text.split("\n"):
        if line.startswith("NodeName="):
            node = _node(line)
            found[node.name] = node
    return found


def _node_values(line: str) -> dict[str, str]:
    """The first value of every key. By words, not by a pattern: there are ten thousand nodes."""
    values: dict[str, str] = {}
    for word in line.split():
        key, _, value = word.partition("=")
        if key in _NODE_KEYS and key not in values:
            values[key] = value
    return values


def _node(line: str) -> Node:
    values = _node_values(line)
    name, state = values.get("NodeName", ""), values.get("State", "")
    if not name or not state:
        raise SlurmError(f"cannot read this node: {line[:120]!r}")
    reason = comment = extra = None
    if "Reason=" in line:
        reason = _NODE_REASON.search(line) or _NODE_REASON_BARE.search(line)
    if "Comment=" in line:
        comment = _NODE_COMMENT.search(line, reason.end() if reason else 0)
    if "Extra=" in line:
        extra = _NODE_EXTRA.search(line, reason.end() if reason else 0)
    return Node(
        name=name,
        states=node_states(state),
        address=_text(values.get("NodeAddr", "")),
        hostname=_text(values.get("NodeHostName", "")),
        port=count(values.get("Port", "")),
        reason=_text(reason[1]) if reason else "",
        reason_user=reason[2] if reason else "",
        reason_time=seconds(reason[3]) if reason else 0.0,
        boot_time=seconds(values.get("BootTime", "")),
        slurmd_start_time=seconds(values.get("SlurmdStartTime", "")),
        cpus=count(values.get("CPUTot", "")),
        memory_mb=count(values.get("RealMemory", "")),
        gres=_text(values.get("Gres", "")),
        partitions=_list(values.get("Partitions", "")),
        features=_list(values.get("ActiveFeatures", "")),
        comment=_text(comment[1]) if comment else "",
        extra=_text(extra[1]) if extra else "",
        available_features=_list(values.get("AvailableFeatures", "")),
    )


# --- jobs ---------------------------------------------------------------------


@dataclass(frozen=True)
class JobText:
    """A job and how far its text can be trusted.

    ``forged``: which of ``PINNED_KEYS`` occur more than once.
    """

    job: Job
    forged: frozenset[str] = frozenset()


def jobs(text: str, wanted: Iterable[int]) -> dict[int, JobText]:
    """Those of ``scontrol -o -d show job`` that are wanted, by job id."""
    records: dict[int, list[str]] = {job_id: [] for job_id in wanted}
    for record in re.split(r"\n(?=JobId=[0-9])", text):
        match = re.match(r"JobId=([0-9]{1,10})\s", record)
        if match is not None and int(match[1]) in records:
            records[int(match[1])].append(record)
    found = {}
    for job_id, lines in records.items():
        if lines:
            read = _job(job_id, " ".join(lines).replace("\n", " "))
            # More than one: somebody's job has a line break in its name.
            found[job_id] = read if len(lines) == 1 else JobText(read.job, frozenset(PINNED_KEYS))
    return found


def job(text: str, job_id: int) -> JobText:
    """The job with ``job_id`` in ``scontrol -o -d show job``.

    For the last task of an array, which has the array's id, and for the first
    job of a heterogeneous job Slurm shows all.
    """
    found = jobs(text, [job_id]).get(job_id)
    if found is None:
        raise SlurmError(f"job {job_id}: cannot read {text[:120]!r}")
    return found


def _job(job_id: int, record: str) -> JobText:
    values, repeated = _first_values(_JOB_KEYS, record)
    missing = [key for key in PINNED_KEYS if key not in values]
    if missing:
        raise SlurmError(f"job {job_id}: no {', '.join(missing)} in {record[:120]!r}")
    state, flags = job_state(values["JobState"], values)
    user = re.search(r"\((\d{1,10})\)$", values["UserId"])
    alloc_host, _, alloc_sid = values.get("AllocNode:Sid", "").rpartition(":")
    batch = values.get("BatchFlag", "0") not in ("", "0")
    name = _JOB_NAME.search(record)
    work_dir = _JOB_WORK_DIR.search(record)
    num_nodes = count(values.get("NumNodes", ""))
    num_tasks = count(values.get("NumTasks", ""))
    layout = _layout(record)
    array = _JOB_ARRAY.match(record)
    parsed = Job(
        job_id=job_id,
        state=state,
        flags=flags,
        name=name[1] if name else "",
        user_id=int(user[1]) if user else -1,
        account=_text(values.get("Account", "")),
        partition=_text(values.get("Partition", "")),
        qos=_text(values.get("QOS", "")),
        reservation=_text(values.get("Reservation", "")),
        features=_text(values.get("Features", "")),
        nodes=_names(values["NodeList"]),
        num_nodes=num_nodes,
        num_cpus=count(values.get("NumCPUs", "")),
        num_tasks=num_tasks,
        min_memory_per_node_mb=megabytes(values.get("MinMemoryNode", "")),
        min_memory_per_cpu_mb=megabytes(values.get("MinMemoryCPU", "")),
        requested_nodes=_names(values.get("ReqNodeList", "")),
        excluded_nodes=_names(values.get("ExcNodeList", "")),
        batch=batch,
        batch_host=_text(values.get("BatchHost", "")) if batch else "",
        alloc_host=_text(alloc_host),
        alloc_sid=count(alloc_sid),
        requeue=values.get("Requeue") == "1",
        restarts=count(values.get("Restarts", "")),
        start_time=seconds(values.get("StartTime", "")),
        end_time=seconds(values.get("EndTime", "")),
        exclusive=values.get("OverSubscribe") in ("NO", "EXCLUSIVE")
        if "Exclusive" not in values
        else values["Exclusive"] == "NODE",
        tres_gres=job_gres(values, num_nodes, num_tasks),
        work_dir=_text(work_dir[1]) if work_dir else "",
        reason=_text(values.get("Reason", "")),
        cpus_by_node=layout,
        resize_time=seconds(values.get("ResizeTime", "")),
        preempt_time=seconds(values.get("PreemptTime", "")),
        array_job=int(array[1]) if array else 0,
        array_task=array_task(array[2]) if array else None,
    )
    return JobText(parsed, repeated & frozenset(PINNED_KEYS))


def job_gres(values: dict[str, str], num_nodes: int, num_tasks: int) -> dict[str, int]:
    """The job's generic resources, ``gres/NAME`` → count over all its nodes.

    ``JOB_GRES`` (shown with ``-d``) is what the job holds, also where it is an
    exclusive job that asked for none; the allocated TRES know a resource only
    if AccountingStorageTRES names it; a waiting job has requests alone.
    """
    held = _gres_counts(_list(values.get("JOB_GRES", "")))
    if held:
        return held
    tres = values.get("AllocTRES") or values.get("TRES") or ""
    held = _gres_counts(item for item in _list(tres) if item.startswith("gres/"))
    if held:
        return held
    requested: dict[str, int] = {}
    for key, factor in (
        ("TresPerJob", 1),
        ("TresPerNode", max(num_nodes, 1)),
        ("TresPerTask", max(num_tasks, 1)),
        ("TresPerSocket", max(num_nodes, 1)),
    ):
        items = (i for i in _list(values.get(key, "")) if i.startswith(("gres:", "gres/")))
        for name, number in _gres_counts(items).items():
            requested[name] = max(requested.get(name, 0), number * factor)
    return requested


def _gres_counts(items: Iterable[str]) -> dict[str, int]:
    """``gpu:4``, ``gres:gpu:a100:2(IDX:0-1)``, ``gres/gpu=4``, ``gpu`` → counts.

    Where Slurm lists a resource both whole and by type, the whole counts.
    """
    whole: dict[str, int] = {}
    typed: dict[str, int] = {}
    for item in items:
        bare = re.sub(r"\(.*", "", item)
        words = [word for word in re.split(r"[:=]", re.sub(r"^gres[:/]", "", bare)) if word]
        if not words:
            continue
        has_number = len(words) > 1 and words[-1][0].isdigit()
        number = count(words[-1]) if has_number else 1
        into = typed if len(words) - has_number > 1 else whole
        name = f"gres/{words[0]}"
        into[name] = into.get(name, 0) + number
    merged = typed | whole
    return {name: number for name, number in merged.items() if number}


def array_task(text: str) -> int | None:
    """A task's number; none for a waiting array, which shows a range."""
    return int(text) if re.fullmatch("[0-9]{1,10}", text) else None


def _layout(record: str) -> dict[str, int]:
    """CPUs by node from the detail lines ``Nodes=n[1-2] CPU_IDs=0-3 Mem=0``."""
    cpus: dict[str, int] = {}
    for match in _JOB_LAYOUT.finditer(record):
        number = id_count(match[2])
        for name in _names(match[1]):
            cpus[name] = number
    return cpus


# --- steps ----------------------------------------------------------------------


def steps(text: str, job_id: int, array_task: int | None = None) -> tuple[Step, ...]:
    """``scontrol -o show step``: the steps of a job, or of one task of its array.

    The last task of an array has the array's id as its job id: for that id Slurm
    shows the steps of all tasks (``shows_array``).
    """
    start = "StepId=" if array_task is None else f"StepId={job_id}_{array_task}."
    # Not at every end of a line: there may be some in the name of a step.
    records = re.split(r"\n(?=StepId=)", text)
    return tuple(_step(record, job_id) for record in records if record.startswith(start))


def shows_array(text: str, job_id: int) -> bool:
    """Whether ``scontrol -o show step`` took ``job_id`` for the id of an array."""
    return re.search(rf"^StepId={job_id}_", text, re.MULTILINE) is not None


def _step(line: str, job_id: int) -> Step:
    identity = _STEP_ID.match(line)
    head, _, _ = line.partition(" Name=")
    values, _ = _first_values(_STEP_KEYS, head)
    if identity is None or "State" not in values:
        raise SlurmError(f"job {job_id}: cannot read this step: {line[:120]!r}")
    name = _STEP_NAME.search(line)
    srun = _STEP_SRUN.match(line)
    return Step(
        job_id=job_id,
        step_id=identity[1],
        state=values["State"],
        nodes=_names(values.get("NodeList", "")),
        num_nodes=count(values.get("Nodes", "")),
        num_tasks=count(values.get("Tasks", "")),
        name=name[1] if name else "",
        start_time=seconds(values.get("StartTime", "")),
        time_limit_s=duration(values.get("TimeLimit", "")),
        srun_host=_text(srun[1]) if srun else "",
        srun_pid=count(srun[2]) if srun else 0,
    )


# --- configuration ---------------------------------------------------------------


def config(text: str) -> ClusterConfig:
    """``scontrol show config``."""
    values: dict[str, str] = {}
    for line in text.split("\n"):
        match = _CONFIG_LINE.match(line)
        if match is not None:
            values.setdefault(match[1], match[2].strip())
    if "ClusterName" not in values or "SLURM_VERSION" not in values:
        raise SlurmError(f"cannot read Slurm's configuration: {text[:120]!r}")
    cred_expire = re.search(r"(?:^|,)cred_expire=(\d{1,9})", values.get("AuthInfo", ""))
    return ClusterConfig(
        cluster_name=values["ClusterName"],
        version=version(values["SLURM_VERSION"]),
        slurmd_timeout_s=count(values.get("SlurmdTimeout", "")),
        kill_wait_s=count(values.get("KillWait", "")),
        slurmd_port=count(values.get("SlurmdPort", "")),
        proctrack=values.get("ProctrackType", ""),
        prolog_flags=frozenset(flag.upper() for flag in _list(values.get("PrologFlags", ""))),
        scheduler_parameters=_list(values.get("SchedulerParameters", "")),
        job_requeue=values.get("JobRequeue") == "1",
        cred_expire_s=int(cred_expire[1]) if cred_expire else 120,
        slurmdbd=values.get("AccountingStorageType", "") == "accounting_storage/slurmdbd",
        gres_types=_list(values.get("GresTypes", "")),
        select_parameters=frozenset(_list(values.get("SelectTypeParameters", "").upper())),
        wait_time_s=count(values.get("WaitTime", "")),
        tcp_timeout_s=count(values.get("TCPTimeout", "2 sec")),
        constrains_devices=values.get("ConstrainDevices") == "yes",
    )
