"""The nodes of the first attempt, before the real srun starts: NODE_LIST and its
kin for a step over the whole job, the first node for a smaller one.

Loaded at every srun inside an allocation, so nothing but ``os`` and ``select``
is used: a few short calls of scontrol, side by side, take about 5 ms. Where it
is not certain which nodes the step will get, nothing is said: the helpers in
the step find out from Slurm.
"""

from __future__ import annotations

import os
import select
import time

#: Options after which a step may have other nodes than its job.
_CHOOSING = (
    "-N", "-n", "-w", "-x", "-r", "-F", "-G", "-Z", "-m",
    "--no", "--nt", "--ex", "--re", "--gpus", "--di", "--job", "--het", "--min",
)  # fmt: skip

#: Options with which the user places a step, or takes it elsewhere.
_PLACING = (
    "-w", "-x", "-r", "-F", "-Z", "-M",
    "--nodel", "--nodef", "--no-a", "--exclud", "--rel", "--cluster", "--het", "--pack",
)  # fmt: skip

#: The first release that deals the nodes of a job out to its steps in turn.
_TAKES_TURNS = (24, 11)

#: What makes a node unfit for a step, in scontrol's words.
_UNFIT = ("DOWN", "DRAIN", "FAIL", "UNKNOWN", "FUTURE", "POWER", "NOT_RESPONDING", "*")

#: Start of an abstract socket's name: who has bound it asks for a job's first node.
_CLAIM = "\0hpresume-first-node-"

#: Options of one letter without a value: others may follow in the same word (-lN2).
_FLAGS = "EHIKOQVXhklsuv"

_LIMIT_S = 2.0

#: What a pipe holds without a reader; nobody has a list of nodes as long.
_PIPE = 65536


def step_variables(environ: dict[str, str], options: list[str], scontrol: str) -> dict[str, str]:
    """NODE_LIST, MASTER_NODE and MASTER_ADDR of a step over the whole job.

    Empty where the step may be smaller than the job, or Slurm does not answer
    within two seconds.
    """
    expression = environ.get("SLURM_JOB_NODELIST", "")
    if not expression or not covers_job(environ, options):
        return {}
    first = first_host(expression)
    listed, shown = _run(
        [
            [scontrol, "show", "hostnames", expression],
            [scontrol, "--oneliner", "show", "node", first],
        ],
        environ,
    )
    nodes = listed.split()
    if not nodes or nodes[0] != first:
        return {}
    listing = ",".join(nodes)
    return {
        # The kernel starts no program with a variable of 128 KiB or more.
        "NODE_LIST": listing if len(listing) <= 100_000 else expression,
        "MASTER_NODE": first,
        "MASTER_ADDR": node_address(shown) or first,
    }


def covers_job(environ: dict[str, str], options: list[str]) -> bool:
    """Whether the step surely gets all nodes of its job. Pure."""
    if any(_is_one_of(word, _CHOOSING) for word in options):
        return False
    count = environ.get("SLURM_JOB_NUM_NODES", "")
    if environ.get("SLURM_NNODES", count) != count or not count.isdigit():
        return False
    tasks = environ.get("SLURM_NTASKS", environ.get("SLURM_NPROCS", count))
    return tasks.isdigit() and int(tasks) >= int(count)


def _is_one_of(word: str, options: tuple[str, ...]) -> bool:
    bare = word[1:].lstrip(_FLAGS)
    return word.startswith("-") and f"-{bare}".startswith(options)


def nodes_to_ask_for(
    environ: dict[str, str], options: list[str], scontrol: str, release: str = ""
) -> str:
    """The first idle nodes of the job, where srun has to be asked for them; else empty.

    Scripts take the first node of the job as their master. Until 24.05 slurmctld
    gives a step the first nodes that are idle. From 24.11 on (seen with 24.11.5,
    the same in the sources of 25.11) it goes on behind the last step's nodes: of
    six nodes, a second step of three gets the other three. So the nodes are asked
    for, the first alone where the step's size is not plain. Not if the user places
    the step, or another one runs on the first node: srun would wait for its end.
    """
    job_id = _job_id(environ, options)
    placed = any(_is_one_of(word, _PLACING) for word in options) or "SLURM_HOSTFILE" in environ
    if placed or not job_id.isdigit() or covers_job(environ, options):
        return ""
    if not release:
        (release,) = _run([[scontrol, "--version"]], environ)  # no question to slurmctld: 2 ms
    if not takes_turns(release):
        return ""
    supposed = environ.get("SLURM_JOB_NODELIST", "") or "none"
    questions = (f"show job {job_id}", f"show step {job_id}", f"show node {supposed}")
    shown = _ask(scontrol, questions, environ)
    expression = nodes_of_job(shown, job_id)
    first = first_host(expression)
    if first == expression:
        return ""
    fit, taken = fit_nodes(shown), ",".join(nodes_of_steps(shown))
    if expression != supposed:
        fit = fit_nodes(_ask(scontrol, (f"show node {expression}",), environ))
    busy = _ask(scontrol, (f"show hostnames {taken}",), environ).split() if taken else []
    idle = [n for n in fit if n not in busy]
    if idle[:1] != [first] or not claim(job_id):
        return ""
    count = nodes_wanted(environ, options)
    return ",".join(idle[:count]) if len(idle) >= count else first


def nodes_wanted(environ: dict[str, str], options: list[str]) -> int:
    """How many nodes the step gets, as far as that is plain to see; else 1. Pure."""
    count = _last(options, "-N", "--nodes") or environ.get("SLURM_NNODES", "")
    tasks = _last(options, "-n", "--ntasks") or environ.get("SLURM_NTASKS", "")
    per_node = any(word.startswith(("--ntasks-", "--tasks")) for word in options)
    if not count.isdigit() or per_node or not (tasks or "1").isdigit():
        return 1
    return max(1, min(int(count), int(tasks or count)))


def _last(options: list[str], short: str, long: str) -> str:
    """The value of an option that was given last; the long one has no clear abbreviation. Pure."""
    found = ""
    for at, word in enumerate(options):
        name, given, value = word.partition("=")
        if not word.startswith("--") and _is_one_of(word, (short,)):
            given = value = word[1:].lstrip(_FLAGS)[1:]
        elif name != long:
            continue
        found = value if given else "".join(options[at + 1 : at + 2])
    return found


def _job_id(environ: dict[str, str], options: list[str]) -> str:
    for at, word in enumerate(options):
        name, given, value = word.partition("=")
        if name.startswith("--jobi"):
            return value if given else "".join(options[at + 1 : at + 2])
    return environ.get("SLURM_JOB_ID", "")


def takes_turns(version: str) -> bool:
    """Whether Slurm starts a step behind the nodes of the last one. Pure.

    ``version`` is a release, ``24.11``, or what Slurm's tools say: ``slurm 24.11.5``.
    """
    numbers = version.strip().rpartition(" ")[2].split(".")[:2]
    return all(n.isdigit() for n in numbers) and tuple(map(int, numbers)) >= _TAKES_TURNS


def nodes_of_job(shown: str, job_id: str) -> str:
    """The nodes of a running job. Pure.

    For the id of an array, scontrol shows every task.
    """
    for line in shown.splitlines():
        words = line.split()
        if words[:1] == [f"JobId={job_id}"] and "JobState=RUNNING" in words:
            return _value(words, "NodeList")
    return ""


def nodes_of_steps(shown: str) -> list[str]:
    """Where steps of a job run that do work. Pure."""
    found = []
    for line in shown.splitlines():
        words = line.split()
        step = words[0].rpartition(".")[2] if line.startswith("StepId=") else ""
        if step.isdigit() and "Name=hpresume-watch" not in words:
            found.append(_value(words, "NodeList"))
    return found


def fit_nodes(shown: str) -> list[str]:
    """Nodes on which a step can start, from ``scontrol -o show node``. Pure."""
    found = []
    for line in shown.splitlines():
        words = line.split()
        name, state = _value(words[:1], "NodeName"), _value(words, "State")
        if name and state and not any(mark in state for mark in _UNFIT):
            found.append(name)
    return found


def claim(job_id: str) -> bool:
    """Be the only one on this host to ask for the first node; held until this process ends.

    Several sruns that a script starts at once see no step of each other. Those
    that come second go where slurmctld puts them.
    """
    import _socket  # the module socket takes milliseconds

    name = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        name.bind(f"{_CLAIM}{os.getuid()}-{job_id}")
    except OSError:
        return False
    _claims.append(name)
    return True


#: Open until the end of this process.
_claims: list[object] = []


def _value(words: list[str], name: str) -> str:
    for word in words:
        if word.startswith(f"{name}="):
            return word[len(name) + 1 :]
    return ""


def first_host(expression: str) -> str:
    """The first host of ``n[01-03,7],m1``: ``n01``. Pure."""
    host, rest = "", expression
    while rest:
        head, bracket, rest = rest.partition("[")
        name, comma, _ = head.partition(",")
        host += name
        if comma or not bracket:
            break
        inside, _, rest = rest.partition("]")
        host += inside.split(",")[0].split("-")[0]
    return host


def node_address(shown: str) -> str:
    """NodeAddr of one line of ``scontrol -o show node``; empty if there is none. Pure."""
    return _value(shown.split(), "NodeAddr")


def _ask(scontrol: str, questions: tuple[str, ...], environ: dict[str, str]) -> str:
    """The answers of one scontrol; one for each question would take twice the time.

    Without steps, or for an unknown node, it ends with an error: the rest counts.
    """
    text = "".join(f"{question}\n" for question in questions)
    (answer,) = _run([[scontrol, "--oneliner"]], {**environ, "TERM": "dumb"}, text)
    return answer


def _run(commands: list[list[str]], environ: dict[str, str], text: str = "") -> list[str]:
    """Standard output of short commands run side by side; empty for a failed one.

    ``text`` is the standard input of one, whose answers count though it failed.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    source = null
    if text:
        source, sink = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.write(sink, text.encode()[:_PIPE])
        os.close(sink)
        os.set_blocking(source, True)
    running = []
    for command in commands:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        redirect = [(os.POSIX_SPAWN_DUP2, source, 0), (os.POSIX_SPAWN_DUP2, writer, 1),
                    (os.POSIX_SPAWN_DUP2, null, 2)]  # fmt: skip
        try:
            pid = os.posix_spawn(command[0], command, environ, file_actions=redirect)
        except OSError:
            pid = 0
        os.close(writer)
        running.append((pid, reader))
    os.close(null)
    if source != null:
        os.close(source)
    deadline = time.monotonic() + _LIMIT_S
    return [_collect(pid, reader, deadline, may_fail=bool(text)) for pid, reader in running]


def _collect(pid: int, reader: int, deadline: float, *, may_fail: bool) -> str:
    chunks: list[bytes] = []
    while pid:
        left = deadline - time.monotonic()
        if not select.select([reader], [], [], max(0.0, left))[0]:
            os.kill(pid, 9)
            chunks = []
            break
        chunk = os.read(reader, 65536)
        if not chunk:
            break
        chunks.append(chunk)
    os.close(reader)
    if not pid or (os.waitpid(pid, 0)[1] != 0 and not may_fail):
        return ""
    return b"".join(chunks).decode(errors="replace")
