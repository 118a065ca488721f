"""Neuron devices, from sysfs.

The driver moved counters when it reorganised its tree (2.31), so a counter is
looked for by its name anywhere below its device, either as a directory with a
file ``total`` or as a file. Nothing is ever written: that clears a counter.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from hpresume.health.checks.hardware import expected_count, instance_type
from hpresume.health.env import Env, whole
from hpresume.health.model import (
    Absent,
    Action,
    Broken,
    Check,
    Fault,
    Result,
    one_line,
    unknown,
    verdict,
)
from hpresume.health.policy import CheckPolicy

TREES = ("/sys/devices/virtual/neuron_device", "/sys/class/neuron_device")

#: Uncorrected errors, and what one of them justifies (None: the policy's action).
ECC = {
    "mem_ecc_uncorrected": None,
    "sram_ecc_uncorrected": None,
    "mem_ecc_repairable_uncorrected": Action.REBOOT,
}

_DEVICE = re.compile(r"neuron\d{1,4}", re.ASCII)
_CORE_ERROR = re.compile(r"hw_(?:\w+_)?error", re.ASCII)
_HEALTH = "unhealthy_components"
_HEALTHY = ("", "0", "0x0", "none", "[]")

#: A device has hundreds of files; more than this is no Neuron tree.
_MAX_FILES = 20_000


@dataclass(frozen=True)
class Device:
    """One device: counters by their path below it; texts of health files."""

    name: str
    counters: tuple[tuple[str, int | None], ...]
    health: tuple[tuple[str, str | None], ...]

    def named(self, name: str) -> list[tuple[str, int | None]]:
        """The counters of a name, wherever they are."""
        return [(p, v) for p, v in self.counters if p.rpartition("/")[2] == name]


@dataclass(frozen=True)
class Neuron:
    """All devices, and where they are."""

    devices: tuple[Device, ...]
    instance: str = ""


def gather(env: Env) -> Neuron | Absent | Broken:
    """Counters of all devices."""
    found = _devices(env)
    if not found:
        return Absent("no Neuron device in sysfs")
    tree, names = found
    return Neuron(tuple(_device(env, tree, name) for name in names))


def gather_count(env: Env) -> Neuron | Absent | Broken:
    """As ``gather``, but a node that should have devices and has none is a fault."""
    instance = instance_type(env)
    found = _devices(env)
    if not found:
        if not expected_count(env.policy, instance):
            return Absent("no Neuron device in sysfs")
        return Neuron((), instance)
    return Neuron(tuple(Device(name, (), ()) for name in found[1]), instance)


def _devices(env: Env) -> tuple[str, tuple[str, ...]] | None:
    for tree in TREES:
        names = tuple(name for name in env.names(tree) if _DEVICE.fullmatch(name))
        if names:
            return tree, names
    return None


def _device(env: Env, tree: str, name: str) -> Device:
    top = str(env.path(f"{tree}/{name}"))
    counters: dict[str, int | None] = {}
    health: dict[str, str | None] = {}
    seen = 0
    for folder, folders, files in os.walk(top):  # does not follow links out of the tree
        seen += len(files)
        if seen > _MAX_FILES or env.time_left < 0:
            break
        folders.sort()
        below = os.path.relpath(folder, top)
        for file in sorted(files):
            path = os.path.normpath(f"{below}/{file}")
            counter = os.path.dirname(path) if file == "total" else path
            base = counter.rpartition("/")[2]
            if base in ECC or _CORE_ERROR.fullmatch(base):
                counters[counter] = whole(env.text(f"{tree}/{name}/{path}"))
            elif base == _HEALTH or counter.rpartition("/")[0].endswith(_HEALTH):
                health[path] = env.text(f"{tree}/{name}/{path}")
    return Device(name, tuple(counters.items()), tuple(health.items()))


def judge_count(neuron: Neuron, policy: CheckPolicy, _now: float) -> Result:
    """As many devices as there should be."""
    seen = len(neuron.devices)
    wanted = expected_count(policy, neuron.instance)
    faults = []
    if wanted and seen < wanted.value:
        text = f"{seen} Neuron devices, the node should have {wanted.value}"
        faults.append(Fault(text, str(seen), wanted))
    return verdict(policy, faults, f"{seen} Neuron devices", str(seen))


def judge_ecc(neuron: Neuron, policy: CheckPolicy, _now: float) -> Result:
    """No uncorrected error on any device."""
    faults, doubts = [], []
    limit = policy.limits["max_uncorrected"]
    for device in neuron.devices:
        known = False
        for name, action in ECC.items():
            for path, value in device.named(name):
                if value is None:
                    doubts.append(f"{device.name}/{path} cannot be read")
                    continue
                known = True
                if value > limit.value:
                    text = f"{device.name}: {value} {name}"
                    faults.append(Fault(text, str(value), limit, action))
        if not known:
            doubts.append(f"{device.name} shows no counter of memory errors")
    return verdict(policy, faults, f"{len(neuron.devices)} devices clean", doubts=doubts)


def judge_health(neuron: Neuron, policy: CheckPolicy, _now: float) -> Result:
    """No hardware error of a core; no component that the driver itself calls unhealthy."""
    faults, doubts, known = [], [], 0
    limit = policy.limits["max_core_errors"]
    for device in neuron.devices:
        for path, value in device.counters:
            if not _CORE_ERROR.fullmatch(path.rpartition("/")[2]):
                continue
            known += value is not None
            if value is None:
                doubts.append(f"{device.name}/{path} cannot be read")
            elif value > limit.value:
                text = f"{device.name}: {value} {one_line(path, 80)}"
                faults.append(Fault(text, str(value), limit))
        for path, text_of in device.health:
            known += text_of is not None
            word = (text_of or "").strip()
            if text_of is None:
                doubts.append(f"{device.name}/{path} cannot be read")
            elif word.lower() not in _HEALTHY:
                said = f"{device.name}: {_HEALTH} is {one_line(word, 80)}"
                # A number is a mask of components; of other texts no release has told yet.
                action = Action.NONE if whole(word) is None else None
                faults.append(Fault(said, one_line(word, 40), action=action))
    if not known and not doubts:
        return unknown(policy, "the driver shows no counter of core errors")
    return verdict(policy, faults, f"{known} counters clean", doubts=doubts)


CHECKS = (
    Check("neuron-count", "Neuron sysfs", gather_count, judge_count),
    Check("neuron-ecc", "Neuron sysfs", gather, judge_ecc),
    Check("neuron-health", "Neuron sysfs", gather, judge_health),
)
