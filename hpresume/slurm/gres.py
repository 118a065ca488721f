"""Counts in a node's generic resources, such as ``gpu:a100:4(S:0-1),nvme:2``."""

from __future__ import annotations

import re

from hpresume.slurm.values import count


def gres_count(text: str, name: str) -> int:
    """How many of ``name`` a node has, whatever their types; 0 for none."""
    total = 0
    # Sockets in brackets may have commas of their own.
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        words = [word for word in item.strip().split(":") if word]
        if not words or words[0] != name:
            continue
        if len(words) > 1 and words[-1][0].isdigit():
            total += count(words[-1])
        else:
            total += 1
    return total
