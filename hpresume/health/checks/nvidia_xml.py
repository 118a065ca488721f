"""What ``nvidia-smi -q -x`` says, as plain values.

XML, not ``--query-gpu`` with CSV: one field that a driver does not know makes
the whole CSV query fail, while the XML just lacks that element; and one call
has everything, processes and remapped rows included. Element names changed
between drivers (450 to 570); each value is looked for under all its names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree import ElementTree

_ERROR = re.compile(r"unknown error|gpu is lost|^\s*ERR!|requires reset", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,6})?", re.ASCII)

#: Slow-downs in NVML's mask 0xE8, as the XML calls them.
SLOWDOWNS = (
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
)


@dataclass(frozen=True)
class Gpu:
    """One GPU; None where the driver does not say."""

    device: str
    uncorrected: float | None = None
    corrected: float | None = None
    remap_failure: bool | None = None
    remap_pending: bool | None = None
    retired_pages: float | None = None
    retirement_pending: bool | None = None
    temperature: float | None = None
    power: float | None = None
    power_limit: float | None = None
    slowdowns: tuple[str, ...] | None = None
    width: float | None = None
    max_width: float | None = None
    replays: float | None = None
    used_mib: float | None = None
    processes: int | None = None
    mig: bool = False
    recovery: str | None = None


@dataclass(frozen=True)
class Report:
    """All GPUs the driver has; ``attached`` is the number it says.

    ``has_errors``: some values are errors, which is not the same as not supported.
    """

    driver: str
    attached: float | None
    gpus: tuple[Gpu, ...]
    has_errors: bool = False


def parse(text: str) -> Report | None:
    """The report; None for a text that is none."""
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - from a tool that root installed
    except (ElementTree.ParseError, ValueError, RecursionError):
        return None
    if root.tag != "nvidia_smi_log":
        return None
    return Report(
        _text(root, ("driver_version",)) or "",
        _number(root, ("attached_gpus",)),
        tuple(_gpu(element) for element in root.findall("gpu")),
        any(_ERROR.search(element.text or "") for element in root.iter()),
    )


def _gpu(gpu: ElementTree.Element) -> Gpu:
    ecc = "ecc_errors/volatile/"
    rows = "remapped_rows/remapped_row_"
    pages = "retired_pages/"
    link = "pci/pci_gpu_link_info/link_widths/"
    return Gpu(
        device=_device(gpu),
        uncorrected=_sum(
            gpu,
            (ecc + "dram_uncorrectable", ecc + "sram_uncorrectable"),
            (ecc + "sram_uncorrectable_parity", ecc + "sram_uncorrectable_secded"),
            (ecc + "double_bit/total",),
        ),
        corrected=_sum(
            gpu, (ecc + "dram_correctable", ecc + "sram_correctable"), (ecc + "single_bit/total",)
        ),
        remap_failure=_yes(gpu, (rows + "failure",)),
        remap_pending=_yes(gpu, (rows + "pending",)),
        retired_pages=_sum(
            gpu,
            (
                pages + "multiple_single_bit_retirement/retired_count",
                pages + "double_bit_retirement/retired_count",
            ),
        ),
        retirement_pending=_yes(gpu, (pages + "pending_retirement", pages + "pending_blacklist")),
        temperature=_number(gpu, ("temperature/gpu_temp",)),
        power=_number(
            gpu,
            (
                "gpu_power_readings/average_power_draw",
                "gpu_power_readings/power_draw",
                "power_readings/power_draw",
                "gpu_power_readings/instant_power_draw",
            ),
        ),
        power_limit=_number(
            gpu,
            (
                "gpu_power_readings/current_power_limit",
                "gpu_power_readings/power_limit",
                "power_readings/power_limit",
            ),
        ),
        slowdowns=_slowdowns(gpu),
        width=_number(gpu, (link + "current_link_width",)),
        max_width=_number(gpu, (link + "max_link_width",)),
        replays=_number(gpu, ("pci/replay_counter",)),
        used_mib=_number(gpu, ("fb_memory_usage/used",)),
        processes=len(found.findall("process_info"))
        if (found := gpu.find("processes")) is not None
        else None,
        mig=(_text(gpu, ("mig_mode/current_mig",)) or "").lower() == "enabled",
        recovery=_text(gpu, ("gpu_recovery_action",)),
    )


def _device(gpu: ElementTree.Element) -> str:
    name = gpu.get("id") or _text(gpu, ("pci/pci_bus_id", "uuid")) or "?"
    return "".join(c for c in name if c.isalnum() or c in ":.-")[:48]


def _slowdowns(gpu: ElementTree.Element) -> tuple[str, ...] | None:
    for prefix in ("clocks_event_reasons", "clocks_throttle_reasons"):
        parent = gpu.find(prefix)
        if parent is None:
            continue
        states = {
            name: _text(parent, (f"{prefix[:-1]}_{name}", f"clocks_throttle_reason_{name}"))
            for name in SLOWDOWNS
        }
        known = {name: state for name, state in states.items() if state is not None}
        return tuple(n for n, s in known.items() if s.lower() == "active") if known else None
    return None


def _text(element: ElementTree.Element, paths: Iterable[str]) -> str | None:
    """The first value that is there and is not ``N/A``."""
    for path in paths:
        text = (element.findtext(path) or "").strip()
        if text and text.upper().strip("[]") not in ("N/A", "NOT SUPPORTED", "UNKNOWN ERROR"):
            return text[:200]
    return None


def _number(element: ElementTree.Element, paths: Iterable[str]) -> float | None:
    for path in paths:
        match = _NUMBER.match(_text(element, (path,)) or "")
        if match:
            return float(match[0])
    return None


def _sum(element: ElementTree.Element, *groups: Iterable[str]) -> float | None:
    """What the elements of all groups add up to; None where there is none of them."""
    numbers = [_number(element, (path,)) for group in groups for path in group]
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _yes(element: ElementTree.Element, paths: Iterable[str]) -> bool | None:
    text = (_text(element, paths) or "").lower()
    return {"yes": True, "no": False}.get(text)
