"""Single values: points in time, durations, sizes, numbers."""

import time

import pytest

from hpresume.errors import SlurmError
from hpresume.slurm import values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1795972359", 1795972359.0),
        ("2026-11-29T17:12:39", time.mktime((2026, 11, 29, 17, 12, 39, 0, 0, -1))),
        ("Unknown", 0.0),
        ("None", 0.0),
        ("N/A", 0.0),
        ("", 0.0),
        ("2026-99-99T00:00:00", 0.0),
        ("٣", 0.0),
    ],
)
def test_points_in_time(text: str, seconds: float) -> None:
    assert values.seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:10:00", 600),
        ("1-00:00:00", 86400),
        ("365-01:02:03", 365 * 86400 + 3723),
        ("05:30", 330),
        ("UNLIMITED", 0),
        ("Partition_Limit", 0),
        ("", 0),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert values.duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [("0", 0), ("500M", 500), ("2G", 2048), ("1.50T", 1572864), ("1024K", 1), ("junk", 0)],
)
def test_memory(text: str, megabytes: int) -> None:
    assert values.megabytes(text) == megabytes


def test_numbers_with_units() -> None:
    assert [values.count(text) for text in ("8", "2K", "2-4", "60 sec", "(null)", "")] == [
        8,
        2048,
        2,
        60,
        0,
        0,
    ]


def test_versions() -> None:
    assert values.version("22.05.8") == (22, 5, 8)
    assert values.version("26.05.0-rc1") == (26, 5, 0)
    with pytest.raises(SlurmError, match="not a version"):
        values.version("unknown")


@pytest.mark.parametrize(
    ("ids", "number"), [("0-3", 4), ("0,2-3", 3), ("", 0), ("junk", 0), ("9-1", 0)]
)
def test_counting_ids(ids: str, number: int) -> None:
    assert values.id_count(ids) == number
