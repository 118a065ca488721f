"""What a node's reason says: an order, nearly one, or nothing for us."""

import pytest

from hpresume.recovery import reasons
from hpresume.recovery.reasons import Kind, NearMiss, Order

HOLD = reasons.hold(Kind.REPLACE, "x")


@pytest.mark.parametrize(
    ("reason", "found"),
    [
        ("Action:Replace", Order(Kind.REPLACE)),
        ("Action:Reboot", Order(Kind.REBOOT)),
        ("Action:Replace : Not responding", Order(Kind.REPLACE)),
        ("Action:Replace: Not responding", Order(Kind.REPLACE)),
        ("Action:Replace [root@2026-01-01T00:00:00]", Order(Kind.REPLACE)),
        ("Action:Replace fan is loud", Order(Kind.REPLACE)),
        ("Action:Replace [hpresume dcgm] row remap failure", Order(Kind.REPLACE, by_health=True)),
        (HOLD, Order(Kind.REPLACE)),
        ("action:replace", NearMiss("Action:Replace")),
        ("Action: Replace", NearMiss("Action:Replace")),
        ("Action:Replace.", NearMiss("Action:Replace")),
        (" Action:Replace", NearMiss("Action:Replace")),
        ("ACTION:REBOOT", NearMiss("Action:Reboot")),
        ("Action=restart", NearMiss("Action:Reboot")),
        ("Action:Replacement", NearMiss("Action:Replace")),
        ("'Action:Replace'", NearMiss("Action:Replace")),
        ("Action:Rebot", NearMiss("Action:Reboot")),
        ("action:Replcae", NearMiss("Action:Replace")),
        ("please Action:Replace it", NearMiss("Action:Replace")),
        ("Action:Quarantine", None),
        (reasons.quarantine("flaps; now: Action:Replace"), None),
        ("Not responding", None),
        ("fan is loud, Action:Replace", NearMiss("Action:Replace")),
        ("Quarantined by hpresume: Action:Replace did not help", None),
        ("", None),
    ],
)
def test_reasons(reason, found):
    assert reasons.read(reason) == found
