"""When the agent's idle work runs again without a request."""

from pathlib import Path

import pytest

from agent import idle
from base.state import claims
from base.state.claims import Claim


def test_a_node_with_a_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead pod's attachment may keep a device from the next claim, and then no ADD comes that asks the agent."""
    monkeypatch.setattr(claims, "FOLDER", f"{tmp_path}/claims")
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}/state")
    monkeypatch.setattr(idle, "_last", bytearray(8))
    assert not idle.reclaim()
    claims.save(Claim("0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f", "default", "rails", (), ()))
    assert idle.reclaim()
