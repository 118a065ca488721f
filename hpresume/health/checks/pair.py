"""Connectivity between nodes, which one node alone cannot check."""

from __future__ import annotations

from hpresume.health.env import Env
from hpresume.health.model import Absent, Broken, Check, Result, unknown
from hpresume.health.policy import CheckPolicy

NAME = "pair-network"


def gather(_env: Env) -> Absent | Broken:
    """``hpresume.health.deep`` does it."""
    return Absent("takes several nodes: hpresume deep-check NODES")


def judge(_raw: object, policy: CheckPolicy, _now: float) -> Result:
    """Never called: there is nothing to judge here."""
    return unknown(policy, "takes several nodes")


CHECKS = (Check(NAME, "network", gather, judge),)
