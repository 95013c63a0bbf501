"""Calls of etcd's gateway: which member answers, what is refused, and the messages.  The server is the standard
library's."""

import os
from pathlib import Path
from typing import Any

import pytest
from support.etcd_server import Member, Opened, body, serving

from base.protocol.errors import BackendRefused, InvalidConfig, Unreachable
from ipam.cluster import BLOCK
from ipam.cluster.backends import etcd
from ipam.cluster.backends.etcd import Etcd
from ipam.cluster.backends.kv import Settings

CLOSED = "http://127.0.0.1:1"


@pytest.fixture
def store(member: Member, opened: Opened) -> Etcd:
    return opened(member)


def test_another_member_answers(member: Member, opened: Opened) -> None:
    assert opened(CLOSED, member).create(BLOCK, "net.3", "net", body(3))
    with serving(Member(answers=[(503, {"error": "etcdserver: no leader", "code": 14})] * 9)) as cut_off:
        there = opened(cut_off, member).read(BLOCK, "net.3")
    assert there
    assert there.body == body(3)


def test_nobody_answers(opened: Opened) -> None:
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 gives no answer"):
        opened(CLOSED).read(BLOCK, "net.3")


def test_no_room_in_etcd(store: Etcd, member: Member) -> None:
    member.answers = [(429, {"error": "etcdserver: mvcc: database space exceeded", "code": 8})] * 9
    with pytest.raises(Unreachable, match="database space exceeded"):
        store.create(BLOCK, "net.3", "net", body(3))


FORBIDDEN = 403, {"error": "etcdserver: permission denied", "code": 7, "message": "etcdserver: permission denied"}
NOBODY = 400, {"error": "etcdserver: user name is empty", "code": 3, "message": "etcdserver: user name is empty"}


NAMED = (
    400,
    {
        "error": "CommonName of client sending a request against gateway will be ignored and not used as expected",
        "code": 0,
    },
)


@pytest.mark.parametrize(("answer", "said"), [
    (FORBIDDEN, r"forbids user nobody to create /hpn/block/net\.3: etcdserver: permission denied; .* readwrite /hpn/"),
    (NOBODY, r"did not create /hpn/block/net\.3: .*; it requires a user: set backends\.etcd\.user and .*passwordFile"),
    (NAMED, r"did not create .*will be ignored and not used as expected; .*accepts no certificate with a common name"),
    ((404, {"message": "Not Found"}), r"did not create .*Not Found; it must be etcd 3\.4 or later"),
])  # fmt: skip
def test_what_etcd_refuses(store: Etcd, member: Member, answer: tuple[int, dict[str, Any]], said: str) -> None:
    member.answers = [answer]
    with pytest.raises(BackendRefused, match=said):
        store.create(BLOCK, "net.3", "net", body(3))


def test_a_user(member: Member, opened: Opened, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    store = opened(member, user="hpn", password_file=str(password))
    assert store.create(BLOCK, "net.3", "net", body(3))
    assert member.bodies[0] == {"name": "hpn", "password": "secret"}
    assert member.tokens == ["", "token.1"]
    # The member restarted, and lost all tokens.
    old = {"error": "etcdserver: invalid auth token", "code": 16, "message": "etcdserver: invalid auth token"}
    member.answers = [(401, old)]
    member.asked.clear()
    assert store.read(BLOCK, "net.3")
    assert member.asked == ["/v3/kv/range", "/v3/auth/authenticate", "/v3/kv/range"]
    member.answers = [(401, old), (400, {"message": "etcdserver: authentication failed, invalid user ID or password"})]
    with pytest.raises(BackendRefused, match=f"rejects user hpn: .*the password in {password}"):
        store.read(BLOCK, "net.3")


@pytest.mark.parametrize(("document", "said"), [
    ({}, r"backends\.etcd\.endpoints None is not a list of URLs"),
    ({"endpoints": ["10.0.0.1:2379"]}, r"backends\.etcd\.endpoints \['10\.0\.0\.1:2379'\] is not a list of URLs"),
    ({"endpoints": ["https://e:0x"]}, r"backends\.etcd\.endpoints \['https://e:0x'\] is not a list of URLs"),
    ({"endpoints": ["https://u:hush@e"]}, r"backends\.etcd\.endpoints \['https://\.\.\.@e'\] is not a list of URLs"),
    ({"endpoints": ["https://e:1"], "cart": ""}, r"backends\.etcd\.cart is not a known key; known: endpoints, "),
    ({"endpoints": ["https://e:1"], "ca": "ca.pem"}, r"backends\.etcd\.ca 'ca\.pem' is not an absolute path"),
    ({"endpoints": ["https://e:1"], "user": 7}, r"backends\.etcd\.user 7 is not a name"),
    ({"endpoints": ["https://e:1"], "cert": "/c"}, r"backends\.etcd\.cert has no effect without key"),
    ({"endpoints": ["https://e:1"], "user": "u"}, r"backends\.etcd\.user has no effect without passwordFile"),
])  # fmt: skip
def test_settings_that_are_refused(document: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        Settings.of(document)


def test_opened() -> None:
    """With endpoints only, and this host's name."""
    about = {"endpoints": ["http://127.0.0.1:1"]}
    assert etcd.opened(about, "n7")[1] == "n7"
    assert etcd.opened(about, "")[1] == os.uname().nodename.lower()


def test_settings() -> None:
    document = {"endpoints": ["https://e:1"], "prefix": "/a/b/", "ca": "/ca", "user": "u", "passwordFile": "/p"}
    assert Settings.of(document) == Settings(("https://e:1",), "/a/b", ca="/ca", user="u", password_file="/p")


def test_a_certificate_that_is_not_there(opened: Opened, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"ca\.pem, which backends\.etcd in .* names, does not exist"):
        opened("https://127.0.0.1:1", ca=str(tmp_path / "ca.pem")).read(BLOCK, "net.3")
