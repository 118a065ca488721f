"""The gateway over the tools, with a runner that answers from a script."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpresume.errors import (
    SlurmDeniedError,
    SlurmError,
    SlurmNotFoundError,
    SlurmTimeoutError,
    SlurmTransientError,
    UsageError,
)
from hpresume.slurm.cli import CliGateway
from hpresume.slurm.models import DonorSpec, JobState
from hpresume.slurm.runner import Answer, Runner

DB_INDEX = "Job update not available right now, the DB index is being set, try again in a bit"
CONFIG_TEXT = (
    "ClusterName = lab\nSLURM_VERSION = 22.05.8\nAccountingStorageType = accounting_storage/none\n"
)


def job_text(job_id: int = 1, *, nodes: str = "n[1-3]", extra: str = "", name: str = "x") -> str:
    return (
        f"JobId={job_id} JobName={name} UserId=t(4242) GroupId=t(1) JobState=RUNNING Reason=None "
        f"Requeue=1 BatchFlag=1 {extra} NodeList={nodes} BatchHost=n1 NumNodes=3 OverSubscribe=NO\n"
    )


class ScriptedRunner(Runner):
    """Answers by the words of a command; a list of answers is used up in turn."""

    def __init__(self, **answers: object) -> None:
        super().__init__({})
        self.answers = {"show_job": job_text(), **answers}
        self.calls: list[str] = []
        self.folders: list[str | None] = []

    def run(self, argv: Sequence[str], timeout_s: float, cwd: str | None = None) -> Answer:
        self.calls.append(" ".join(argv))
        self.folders.append(cwd)
        answer = self.answers[self._key(argv)]
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Answer):
            return answer
        assert isinstance(answer, str)
        return Answer(answer, "", 0)

    @staticmethod
    def _key(argv: Sequence[str]) -> str:
        words = [word for word in argv if not word.startswith("-")]
        if words[0] == "scontrol" and words[1] == "show":
            return f"show_{words[2]}"
        return words[1] if words[0] == "scontrol" else words[0]


def said(text: str) -> Answer:
    return Answer("", text + "\n", 1)


def test_nodes_come_in_the_order_of_their_names() -> None:
    text = "NodeName=n1 State=IDLE\nNodeName=n2 State=DOWN*\n"
    runner = ScriptedRunner(show_node=text)
    assert list(CliGateway(runner).nodes(["n2", "n1", "n2"])) == ["n2", "n1"]
    assert runner.calls == ["scontrol -a -o show node n2,n1"]
    assert list(CliGateway(runner).nodes()) == ["n1", "n2"]
    assert CliGateway(runner).nodes([]) == {}
    assert len(runner.calls) == 2


def test_an_unknown_node_is_not_found() -> None:
    gateway = CliGateway(ScriptedRunner(show_node="NodeName=n1 State=IDLE\n"))
    with pytest.raises(SlurmNotFoundError, match="no node n9"):
        gateway.nodes(["n1", "n9"])


@pytest.mark.parametrize("names", [None, ["n1"]])
@pytest.mark.parametrize("text", ["", "garbage\n", "\x00" * 50])
def test_an_answer_without_nodes_is_no_cluster_without_nodes(text: str, names: list[str]) -> None:
    with pytest.raises(SlurmError, match="no node in its answer") as caught:
        CliGateway(ScriptedRunner(show_node=text)).nodes(names)
    assert not isinstance(caught.value, SlurmNotFoundError)
    none = ScriptedRunner(show_node="No nodes in the system\n")
    assert CliGateway(none).nodes() == {}


def test_a_transient_answer_is_asked_again() -> None:
    refused = said("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    runner = ScriptedRunner(show_job=[refused, refused, job_text()])
    assert CliGateway(runner).job(1).nodes == ("n1", "n2", "n3")
    assert len(runner.calls) == 3


def test_in_the_end_slurms_words_are_raised_rather_than_a_time_out() -> None:
    answers: list[object] = [said("Socket timed out on send/recv operation")]
    runner = ScriptedRunner(show_job=answers + [SlurmTimeoutError("no answer")] * 50)
    with pytest.raises(SlurmTransientError, match="Socket timed out on send"):
        CliGateway(runner, read_timeout_s=0.5).job(1)


def test_a_time_out_alone_is_raised_as_one() -> None:
    runner = ScriptedRunner(show_job=SlurmTimeoutError("no answer"))
    with pytest.raises(SlurmTimeoutError):
        CliGateway(runner, read_timeout_s=0.4).job(1)


def test_an_error_that_is_not_transient_is_raised_at_once() -> None:
    runner = ScriptedRunner(show_job=said("slurm_load_jobs error: Invalid job id specified"))
    with pytest.raises(SlurmNotFoundError, match="Invalid job id"):
        CliGateway(runner).job(1)
    assert len(runner.calls) == 1


def test_steps_of_a_job_that_is_gone_are_none() -> None:
    runner = ScriptedRunner(show_step=said("slurm_get_job_steps error: Invalid job id specified"))
    assert CliGateway(runner).steps(1) == ()


def test_what_a_user_wrote_into_a_job_is_asked_from_squeue() -> None:
    text = job_text(nodes="n[1-2]", name="x UserId=root(0) JobState=RUNNING NodeList=n7 y")
    runner = ScriptedRunner(show_job=text, squeue="1|4242|RUNNING|n[1-2]|1|N/A\n")
    job = CliGateway(runner).job(1)
    assert (job.user_id, job.state, job.nodes) == (4242, JobState.RUNNING, ("n1", "n2"))


def test_own_jobs_few_and_many() -> None:
    few = ScriptedRunner(squeue="1\n", show_job=job_text(1))
    assert [job.job_id for job in CliGateway(few).own_jobs()] == [1]
    ids = range(1, 12)
    everybody = "\n".join(job_text(i).strip() for i in range(1, 30))
    many = ScriptedRunner(squeue="\n".join(map(str, ids)), show_job=everybody)
    assert [job.job_id for job in CliGateway(many).own_jobs()] == list(ids)
    assert len(many.calls) == 2


def test_own_jobs_leaves_out_what_ended_meanwhile() -> None:
    ended = job_text(2).replace("JobState=RUNNING", "JobState=COMPLETED")
    gone = said("slurm_load_jobs error: Invalid job id specified")
    runner = ScriptedRunner(squeue="1\n2\n3\n", show_job=[job_text(1), ended, gone])
    assert [job.job_id for job in CliGateway(runner).own_jobs()] == [1]


def test_shrinking_leaves_nothing_in_the_working_directory() -> None:
    runner = ScriptedRunner(show_job=job_text(), update="")
    CliGateway(runner).set_job_nodes(1, ["n1", "n3"])
    assert runner.calls[-1] == "scontrol update jobid=1 NodeList=n1,n3"
    folder = runner.folders[-1]
    assert folder is not None
    assert Path(folder).name.startswith("hpresume-")
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("nodes", "answer", "kind", "words"),
    [
        (["n2"], "Invalid node name specified for job 1", SlurmDeniedError, "batch host n1"),
        (["n1", "n9"], "Invalid node name specified for job 1", SlurmNotFoundError, "no node n9"),
        (["n1"], "Access/permission denied for job 1", SlurmDeniedError, "permission denied"),
        (["n1"], "Job has already finished for job 1", SlurmError, "already finished"),
    ],
)
def test_a_refused_shrink_says_why(
    nodes: list[str], answer: str, kind: type[SlurmError], words: str
) -> None:
    runner = ScriptedRunner(show_job=job_text(), update=said(answer))
    with pytest.raises(kind, match=words):
        CliGateway(runner).set_job_nodes(1, nodes)


def test_a_job_cannot_be_shrunk_to_nothing() -> None:
    with pytest.raises(UsageError, match="cancel it instead"):
        CliGateway(ScriptedRunner()).set_job_nodes(1, [])


def test_a_second_resize_without_slurmdbd_is_refused_before_slurm_is_asked() -> None:
    resized = job_text(extra="ResizeTime=1795973282")
    runner = ScriptedRunner(show_job=resized, show_config=CONFIG_TEXT)
    with pytest.raises(SlurmDeniedError, match="without slurmdbd"):
        CliGateway(runner).set_job_nodes(1, ["n1"])
    assert not any("update" in call for call in runner.calls)


def test_any_other_update_after_a_resize_is_refused_at_slurms_first_word() -> None:
    resized = job_text(extra="ResizeTime=1795973282")
    runner = ScriptedRunner(show_job=resized, show_config=CONFIG_TEXT, update=said(DB_INDEX))
    with pytest.raises(SlurmDeniedError, match="without slurmdbd"):
        CliGateway(runner).update_job(1, Comment="x")


def test_with_slurmdbd_the_database_index_is_waited_for() -> None:
    with_dbd = CONFIG_TEXT.replace("/none", "/slurmdbd")
    resized = job_text(extra="ResizeTime=1795973282")
    runner = ScriptedRunner(
        show_job=resized, show_config=with_dbd, update=[said(DB_INDEX), said(DB_INDEX), ""]
    )
    CliGateway(runner).set_job_nodes(1, ["n1"])


def test_update_passes_every_field_as_one_argument() -> None:
    runner = ScriptedRunner(update="")
    CliGateway(runner).update_job(1, Comment="a b=c", ExcNodeList="n2")
    assert runner.calls[-1] == "scontrol update jobid=1 Comment=a b=c ExcNodeList=n2"
    with pytest.raises(UsageError, match="no field"):
        CliGateway(runner).update_job(1)


def test_requeue() -> None:
    runner = ScriptedRunner(requeue="")
    CliGateway(runner).requeue(1)
    assert runner.calls[-1] == "scontrol requeue 1"


def test_requeue_of_a_job_that_waits_already_is_no_error() -> None:
    lost = said("Socket timed out on send/recv operation")
    runner = ScriptedRunner(requeue=[lost, said("Job is pending execution for job 1")])
    CliGateway(runner).requeue(1)


def test_requeue_refused() -> None:
    runner = ScriptedRunner(requeue=said("Requested operation is presently disabled for job 1"))
    with pytest.raises(SlurmDeniedError, match="presently disabled"):
        CliGateway(runner).requeue(1)


@pytest.mark.parametrize(
    ("step", "signal", "call"),
    [
        (None, None, "scancel 1"),
        ("0", None, "scancel 1.0"),
        (None, "USR1", "scancel --signal=USR1 1"),
        ("3", "KILL", "scancel --signal=KILL 1.3"),
        ("batch", "TERM", "scancel --signal=TERM --batch 1"),
    ],
)
def test_cancel(step: str | None, signal: str | None, call: str) -> None:
    runner = ScriptedRunner(scancel="")
    CliGateway(runner).cancel(1, step, signal)
    assert runner.calls[-1] == call


@pytest.mark.parametrize(
    "text",
    [
        "scancel: error: Kill job error on job id 1: Invalid job id specified",
        "scancel: error: Kill job error on job step id 1.0: Job/step already completing or "
        "completed",
    ],
)
def test_cancel_of_what_is_gone_is_no_error(text: str) -> None:
    CliGateway(ScriptedRunner(scancel=said(text))).cancel(1, "0")


def test_cancel_refused() -> None:
    text = "scancel: error: Kill job error on job id 1: Access/permission denied"
    with pytest.raises(SlurmDeniedError, match="permission denied"):
        CliGateway(ScriptedRunner(scancel=said(text))).cancel(1)


def test_the_reading_path_loads_the_standard_library_only() -> None:
    code = """
import sys
from hpresume.slurm.cli import CliGateway
third = {name.split('.')[0] for name in sys.modules} & {
    'tenacity', 'ClusterShell', 'pyslurm', 'rich', 'typer', 'importlib.metadata'}
sys.exit(', '.join(sorted(third)) or 0)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_growing_is_refused_before_there_is_a_donor() -> None:
    text = CONFIG_TEXT + "SchedulerParameters = permit_job_expansion\n"
    runner = ScriptedRunner(show_job=job_text(extra="JOB_GRES=gpu:8"), show_config=text)
    with pytest.raises(SlurmDeniedError, match="cannot grow"):
        CliGateway(runner).grow_job(DonorSpec(1, 1, "main"), 5)
    assert not any("salloc" in call for call in runner.calls)


def test_a_node_is_updated() -> None:
    runner = ScriptedRunner(update="")
    gateway = CliGateway(runner)
    gateway.update_node("n1", State="FAIL", Reason="Action:Reboot [x] a b")
    assert runner.calls == ["scontrol update nodename=n1 State=FAIL Reason=Action:Reboot [x] a b"]


@pytest.mark.parametrize("name", ["n[1-3]", "n1,n2", "ALL", "", "n1 state=down"])
def test_only_one_node_is_updated(name: str) -> None:
    with pytest.raises(UsageError, match="not the name of one node"):
        CliGateway(ScriptedRunner()).update_node(name, State="FAIL")
    with pytest.raises(UsageError, match="no field"):
        CliGateway(ScriptedRunner()).update_node("n1")
