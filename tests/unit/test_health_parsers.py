"""No input makes a parser raise, or a check say Pass."""

import json
import string
from collections.abc import Callable
from typing import Any

import pytest
from health_node import NOW, policy_of, sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpresume.health import strikes
from hpresume.health.checks import (
    cpu_stress,
    dcgm,
    dcgm_diag,
    efa,
    kernel_log,
    neuron,
    node,
    nvidia,
    nvidia_xml,
    nvlink,
    slurm_node,
)
from hpresume.health.env import Answer, whole
from hpresume.health.mark import own_mark
from hpresume.health.model import MAX_EVIDENCE, Result, Status, one_line

Judge = Callable[[str], Result | None]


def _smi(name: str) -> Judge:
    check = next(c for c in nvidia.CHECKS if c.name == name)

    def judge(text: str) -> Result | None:
        report = nvidia_xml.parse(text)
        return report and check.judge(nvidia.Smi(report, (), 1), policy_of(name), NOW)

    return judge


def _dcgm(
    name: str, parse: Callable[[str], Any], judge: Callable[..., Result], wrap: Any = None
) -> Judge:
    def run(text: str) -> Result | None:
        raw = parse(text)
        return judge(wrap(raw) if wrap else raw, policy_of(name), NOW) if raw else None

    return run


def _log(name: str) -> Judge:
    check = next(c for c in kernel_log.CHECKS if c.name == name)
    return lambda text: check.judge(
        kernel_log.KernelLog(0.0, kernel_log.parse(text, 0.0)), policy_of(name), NOW
    )


JUDGES: dict[str, Judge] = {
    **{name: _smi(name) for name in [c.name for c in nvidia.CHECKS]},
    "gpu-nvlink": _dcgm("gpu-nvlink", nvlink.parse_links, nvlink.judge_links, nvlink.Links),
    "dcgm-health": _dcgm("dcgm-health", dcgm.parse_health, dcgm.judge_health),
    "dcgm-policy": _dcgm("dcgm-policy", dcgm.parse_values, dcgm.judge_values, dcgm.Values),
    "dcgm-diag": _dcgm("dcgm-diag", dcgm_diag.parse_diag, dcgm_diag.judge_diag),
    "efa-provider": lambda text: efa.judge_domains(
        efa.Domains(efa.parse_domains(text), 1), policy_of("efa-provider"), NOW
    ),
    "cpu-stress": lambda text: cpu_stress.judge(
        cpu_stress.Stress(Answer("stress-ng", text, "", 0), 1, None), policy_of("cpu-stress"), NOW
    ),
    "munge": lambda text: slurm_node.judge_munge(Answer("munge", text), policy_of("munge"), NOW),
    "clock": lambda text: node.judge_clock(
        node.Clock(node.parse_tracking(text), "chronyd"), policy_of("clock"), NOW
    ),
    **{c.name: _log(c.name) for c in kernel_log.CHECKS},
}

SAMPLES = [
    sample(name)
    for name in (
        "nvidia-smi-470.xml",
        "nvidia-smi-570.xml",
        "nvlink.txt",
        "dcgmi-health-failure.json",
        "dcgmi-dmon.txt",
        "dcgmi-diag-3.json",
        "dcgmi-diag-4.json",
        "fi_info-efa.txt",
        "fi_pingpong.txt",
        "stress-ng-failed.txt",
    )
] + ["3,2,5000,-;NVRM: Xid (PCI:0000:3b:00): 79, x\n", "MUNGE:AwQ=:", "9 (slurmd) S 1"]

PARSERS: list[Callable[[str], object]] = [
    *JUDGES.values(),
    efa.parse_memlock,
    efa.parse_pingpong,
    node.parse_mounts,
    slurm_node.parse_state,
    cpu_stress.busy_ticks,
    whole,
    own_mark,
    lambda text: strikes.parse(text.encode("utf-8", "replace")),
]

FAST = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@FAST
@given(st.text(max_size=400), st.sampled_from(list(JUDGES)))
def test_no_text_passes(text: str, name: str) -> None:
    result = JUDGES[name](text)
    assert result is None or result.status is not Status.PASS


@FAST
@given(st.text(string.printable, max_size=200))
def test_every_parser_takes_every_text(text: str) -> None:
    for parse in PARSERS:
        parse(text)


@settings(FAST, max_examples=100)
@given(st.data())
def test_every_parser_takes_damaged_samples(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(SAMPLES))
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    damaged = text[:start] + data.draw(st.text(max_size=8)) + text[end:]
    for parse in PARSERS:
        parse(damaged)


@FAST
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["body", "Overall Health", "value", "results", "status", "tests", "warnings"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_every_json_document_is_taken(document: object) -> None:
    text = json.dumps(document)
    for name in ("dcgm-health", "dcgm-diag"):
        JUDGES[name](text)
    strikes.parse(text.encode())


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 20_000, "<a>" * 10_000, "9" * 20_000])
def test_deep_and_long_texts(text: str) -> None:
    for parse in PARSERS:
        parse(text)


@FAST
@given(st.text(max_size=600))
def test_evidence_is_one_line(text: str) -> None:
    line = one_line(text)
    assert len(line) <= MAX_EVIDENCE
    assert line.isprintable()


@FAST
@given(
    st.dictionaries(st.sampled_from(list(neuron.ECC)), st.none() | st.integers(-5, 5), max_size=3)
)
def test_neuron_counters(counters: dict[str, int | None]) -> None:
    device = neuron.Device("neuron0", tuple(counters.items()), ())
    result = neuron.judge_ecc(neuron.Neuron((device,)), policy_of("neuron-ecc"), NOW)
    if result.status is Status.PASS:
        assert counters
        assert all(value is not None and value <= 0 for value in counters.values())
