"""What --auto-resume adds to a step that does not fail, and to one that does not ask for it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from cluster import E2eCluster
from measure import BARE, hold, report, slowness
from steps import Run

pytestmark = pytest.mark.bench

CLUSTER = {"nodes": 2, "gpus_per_node": 0, "plugin": True}

PAIRS = 20

#: Most that a protected step may take longer (ms), on a machine on which a bare
#: interpreter takes measure.BARE_MS. A slower or busier one gets in proportion more.
BOUND_MS = 50.0

#: Most that a step without the option may take longer (ms), on the same terms.
PLAIN_BOUND_MS = 10.0

WRAPPER = Path(__file__).resolve().parents[2] / "scripts" / "srun"

_PAIRS = [sys.executable, "-I", "-S", str(Path(__file__).with_name("pairs.py")), str(PAIRS)]


def compared(*options: str) -> list[str]:
    """The command line that times both, and a bare interpreter, one after the other."""
    protected = ["srun", "--auto-resume=1", *options, "true"]
    return in_turn(["srun", *options, "true"], protected)


def in_turn(plain: Sequence[str], ours: Sequence[str]) -> list[str]:
    return [*_PAIRS, *plain, "///", *ours, "///", *BARE]


def test_true_on_all_nodes_of_an_allocation(cluster: E2eCluster) -> None:
    argv = ["salloc", "--quiet", "-N2", *compared()]
    judge("in salloc", lambda: as_trainer(cluster, argv))


def test_true_in_a_batch_script_beside_a_spare(cluster: E2eCluster) -> None:
    def run() -> str:
        run = Run(cluster)
        run.batch(shlex.join(compared("-N1", "-n1")), "-N2")
        return run.wait_end(120.0)

    judge("in sbatch with a spare", run)


def test_true_with_an_allocation_of_its_own(cluster: E2eCluster) -> None:
    judge("alone", lambda: as_trainer(cluster, compared()))


def test_true_with_a_setting_in_the_environment(cluster: E2eCluster) -> None:
    argv = ["salloc", "--quiet", "-N2", "env", "HPRESUME_MAX_RESUMES=5", *compared()]
    judge("in salloc with a setting", lambda: as_trainer(cluster, argv))


def test_true_without_the_option_under_the_plugin(cluster: E2eCluster) -> None:
    layout = cluster.layout
    text = layout.slurm_conf.read_text()
    assert str(layout.plugstack_conf) in text
    without = layout.root / "without-plugin.conf"
    without.write_text(text.replace(str(layout.plugstack_conf), "/dev/null"))
    with_it, plain = (
        ["env", f"SLURM_CONF={conf}", "srun", "-N1", "-n1", "true"]
        for conf in (layout.slurm_conf, without)
    )
    argv = ["salloc", "--quiet", "-N2", *in_turn(plain, with_it)]
    judge("unasked", lambda: as_trainer(cluster, argv), "with the plugin", PLAIN_BOUND_MS)


def test_true_without_the_option_through_the_wrapper(cluster: E2eCluster) -> None:
    options = ["-N1", "-n1", "true"]
    argv = ["salloc", "--quiet", "-N2", *in_turn(["srun", *options], [str(WRAPPER), *options])]
    judge("unasked", lambda: as_trainer(cluster, argv), "by the wrapper", PLAIN_BOUND_MS)


def as_trainer(cluster: E2eCluster, argv: list[str]) -> str:
    return cluster.exec(argv, user="trainer", timeout=120.0, check=True).stdout


def judge(
    where: str,
    measure: Callable[[], str],
    ours: str = "protected",
    bound_ms: float = BOUND_MS,
) -> None:
    """Report plain runs and ``ours`` side by side, as ``measure`` times them."""
    name = f"srun true {where}"
    plain, other, bare = json.loads(measure())
    pairs = list(zip(plain, other, strict=True))
    report(name, [1000 * p for p in plain], "ms")
    report(f"{name}, {ours}: times as long", [q / p for p, q in pairs], "x")
    longer = [1000 * (q - p) for p, q in pairs]
    speed = report(f"{name}: a bare interpreter", [1000 * b for b in bare], "ms")
    bound = round(bound_ms * slowness(speed.values), 1)
    hold(report(f"{name}, {ours}: longer by", longer, "ms", bound))
