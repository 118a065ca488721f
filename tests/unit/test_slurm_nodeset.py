"""Node list expressions: the fast path agrees with ClusterShell, errors are SlurmErrors."""

import subprocess
import sys

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st

from hpresume.errors import SlurmError
from hpresume.slurm import nodeset


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("", ()),
        ("(null)", ()),
        ("None assigned", ()),
        ("n1", ("n1",)),
        ("n[1-3,5]", ("n1", "n2", "n3", "n5")),
        ("n[5,1-3]", ("n5", "n1", "n2", "n3")),
        ("a1,b[01-03]", ("a1", "b01", "b02", "b03")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("n[9-11]", ("n9", "n10", "n11")),
        ("gpu-a100-[1-2]", ("gpu-a100-1", "gpu-a100-2")),
        ("n[1-2]-ib", ("n1-ib", "n2-ib")),
        ("ip-10-1-2-3,ip-10-1-2-10", ("ip-10-1-2-3", "ip-10-1-2-10")),
        ("login.cluster", ("login.cluster",)),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n[1-7/3]", ("n1", "n4", "n7")),
        ("z9,a1", ("z9", "a1")),
    ],
)
def test_expand(expression: str, names: tuple[str, ...]) -> None:
    assert nodeset.expand(expression) == names


@pytest.mark.parametrize(
    "garbage",
    [
        "n[",
        "n[1-",
        "n]",
        "[1-2",
        "n[1-9999999999]",
        "n[3-1]",
        "@group",
        "a b",
        "n[1-2],,n[",
        "n[x]",
    ],
)
def test_garbage_is_a_slurm_error(garbage: str) -> None:
    with pytest.raises(SlurmError):
        nodeset.expand(garbage)


def test_plain_forms_do_not_load_clustershell() -> None:
    code = (
        "import sys; from hpresume.slurm import nodeset; "
        "nodeset.expand('n[1-3,5],a07,b[08-11]-x'); nodeset.fold(['n1', 'n2', 'n3']); "
        "sys.exit('ClusterShell' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


_prefixes = st.sampled_from(["n", "gpu", "node-", "ip-10-2-", "r1n"])
_padded = st.tuples(_prefixes, st.integers(0, 120), st.sampled_from([0, 2, 3]))


def _name(prefix: str, number: int, width: int) -> str:
    return f"{prefix}{number:0{width}d}" if width else f"{prefix}{number}"


@given(st.lists(_padded, min_size=1, max_size=40))
def test_expand_reads_what_clustershell_folds(parts: list[tuple[str, int, int]]) -> None:
    names = [_name(*part) for part in parts]
    folded = str(NodeSet.fromlist(names))
    assert set(nodeset.expand(folded)) == set(names)
    assert set(nodeset.expand(folded)) == set(NodeSet(folded))


@given(_prefixes, st.integers(0, 999), st.integers(0, 60), st.sampled_from([0, 3]))
def test_ranges_agree_with_clustershell(prefix: str, low: int, size: int, width: int) -> None:
    expression = f"{prefix}[{_name('', low, width)}-{_name('', low + size, width)}]"
    assert nodeset.expand(expression) == tuple(NodeSet(expression))


@given(st.lists(_padded, max_size=40))
def test_fold_is_undone_by_expand(parts: list[tuple[str, int, int]]) -> None:
    names = [_name(*part) for part in parts]
    folded = nodeset.fold(names)
    assert sorted(nodeset.expand(folded)) == sorted(set(names))
    assert set(NodeSet(folded)) == set(names)


def test_fold_is_short() -> None:
    assert nodeset.fold(["n1", "n2", "n3", "n5"]) == "n[1-3,5]"
    assert nodeset.fold(["n08", "n09", "n10"]) == "n[08-10]"
    assert nodeset.fold(["a", "n2", "n2"]) == "a,n2"
    assert len(nodeset.fold(f"node{i}" for i in range(10_000))) < 20


@given(st.text(alphabet="n01[],-/@ *{}x", max_size=30))
def test_no_garbage_raises_anything_else(text: str) -> None:
    try:
        names = nodeset.expand(text)
    except SlurmError:
        return
    assert all(isinstance(name, str) for name in names)
