"""Every byte that base.kernel.rules builds or decodes, compared with pyroute2's encoder and decoder."""

from ipaddress import ip_address
from typing import Any

import pytest
from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg
from support.pyroute import decoded, encoded

from base.kernel import rules


@pytest.mark.parametrize(
    ("source", "family", "length"), [("10.56.0.2", 2, 32), ("fd00:56::2", 10, 128)], ids=["IPv4", "IPv6"]
)
@pytest.mark.parametrize(("table", "in_header"), [(1, 1), (100, 100), (255, 255), (256, 0), (2**32 - 1, 0)])
def test_rule(source: str, family: int, length: int, table: int, in_header: int) -> None:
    body = rules.rule(ip_address(source), table)
    fields = {"family": family, "dst_len": 0, "src_len": length, "tos": 0, "table": in_header, "action": 1, "flags": 0}
    attrs: list[Any] = [("FRA_SRC", source), ("FRA_TABLE", table), ("FRA_PROTOCOL", 4)]
    found, found_attrs = decoded(fibmsg, body)
    assert ({k: found[k] for k in fields}, found_attrs) == (fields, attrs)
    assert body == encoded(fibmsg, fields, attrs)


@pytest.mark.parametrize(("table", "in_header"), [(254, 254), (100, 0), (2**32 - 1, 252)])
def test_table_of(table: int, in_header: int) -> None:
    """The attribute takes precedence, for routes and for rules."""
    for kind, key, name in ((fibmsg, rules.FRA_TABLE, "FRA_TABLE"), (rtmsg, rules.RTA_TABLE, "RTA_TABLE")):
        assert rules.table_of(encoded(kind, {"family": 2, "table": in_header}, [(name, table)]), key) == table
        assert rules.table_of(encoded(kind, {"family": 2, "table": 77}, []), key) == 77
