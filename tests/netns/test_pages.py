"""What the pages show comes out: every transcript in docs/, typed again.  HPN_WRITE_PAGES=1 writes what came out into
the pages instead, to be read before it is committed."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha512
from itertools import takewhile, zip_longest
from typing import Any

import pytest
from pages import PAGES, Section, commands, sections
from shipped import plugins
from topology import Host, Pod, ip

from ctl import main as ctl

SECTIONS = [
    section for page in PAGES for section in sections(page) if any(block.kind == "console" for block in section.blocks)
]
# What is another each time.
VARIES = (
    (re.compile(r"\b(?!02:00:00:00:00:)[0-9a-f]{2}(:[0-9a-f]{2}){5}\b"), "MAC"),
    (re.compile(r"\bfe80::[0-9a-f:]+"), "fe80::"),
    (re.compile(r"@if\d+"), "@if"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\S*\d)?"), "TIME"),
    (re.compile(r"\s+"), " "),
)
FAILED = " failed "


@dataclass
class Shell:
    """Types a transcript's commands.  cnitool and hpn are answered in process; the machine runs all others."""

    host: Host
    make_pod: Callable[[], Pod]
    capsys: pytest.CaptureFixture[str]
    networks: dict[str, dict[str, Any]]
    pods: dict[str, Pod] = field(default_factory=dict)
    results: dict[tuple[str, str, str], Any] = field(default_factory=dict)

    def pod(self, name: str) -> Pod:
        if name not in self.pods:
            self.pods[name] = self.make_pod()
            # Without duplicate address detection what is shown does not depend on when it is asked for.
            self.pods[name].sysctl("ipv6/conf/default/accept_dad", "0")
        return self.pods[name]

    def type(self, where: str, command: str) -> list[str]:
        words = shlex.split(command)
        environ = dict(word.split("=", 1) for word in takewhile(re.compile(r"[A-Z_0-9]+=").match, words))
        program, *rest = words[len(environ) :]
        if program == "cnitool":
            out = self.cnitool(*rest, environ)
        elif program == "hpn":
            out = self.hpn(rest)
        else:
            out = self.shell(where, command)
        for name, pod in self.pods.items():
            out = out.replace(pod.name, name)
        return [line.rstrip() for line in out.replace(str(self.host.state), "/run/hpn").rstrip().splitlines()]

    def cnitool(self, command: str, network: str, path: str, environ: dict[str, str]) -> str:
        """As it calls the plugins of a list of one, and prints the answer."""
        name = path.rpartition("/")[2]
        folder = environ.pop("NETCONFPATH", "/etc/cni/net.d").rpartition("/")[2]
        conf = self.networks[folder] if folder in self.networks else next(iter(self.networks.values()))
        assert conf["name"] == network
        (plugin,) = plugins(conf)
        plugin["stateDir"] = str(self.host.state)
        plugin["runtimeConfig"] = json.loads(environ.pop("CAP_ARGS", "{}"))
        environ.setdefault("CNI_CONTAINERID", f"cnitool-{sha512(path.encode()).hexdigest()[:20]}")
        environ.setdefault("CNI_ARGS", f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}")
        key = network, name, environ.get("CNI_IFNAME", "")
        if command != "add" and key in self.results:
            plugin["prevResult"] = self.results[key]
        reply = self.host.call(command.upper(), self.pod(name), plugin, **environ)
        answer = json.loads(reply.stdout or "{}")
        if reply.exit_code:
            text = "; ".join(filter(None, (answer["msg"], answer.get("details", ""))))
            return f'plugin type="hpn"{FAILED}({command}): {text}'
        if command == "add":
            self.results[key] = answer
        return json.dumps(answer, indent=4) if answer else ""

    def hpn(self, words: list[str]) -> str:
        leases = ["--data-dir", f"{self.host.state}/ipam"]
        journal = ["--state-dir", str(self.host.state)]
        self.capsys.readouterr()
        ctl.main(["hpn", *words, *{"inspect": journal, "gc": journal + leases}.get(words[0], leases)])
        return "".join(self.capsys.readouterr())

    def shell(self, where: str, command: str) -> str:
        for name, pod in self.pods.items():
            command = re.sub(rf"\b{name}\b", pod.name, command)
        into = [] if where == "node" else ["ip", "netns", "exec", self.pod(where).name]
        done = subprocess.run([*into, "sh", "-c", command], capture_output=True, text=True, check=False, timeout=30)
        return done.stdout + done.stderr


@pytest.fixture
def shell(host: Host, make_pod: Callable[[], Pod], capsys: pytest.CaptureFixture[str]) -> Callable[..., Shell]:
    """On a node with two rails, each with a far end, "fabric" and "fabric1"."""
    ip("link", "add", "rail1", "type", "veth", "peer", "name", "fabric1")
    for name in ("rail1", "fabric1"):
        ip("link", "set", name, "up")
    return lambda networks: Shell(host, make_pod, capsys, networks)


def plain(line: str) -> str:
    for pattern, name in VARIES:
        line = pattern.sub(name, line)
    return line.strip()


def same(shown: list[str], typed: list[str]) -> bool:
    """But for what is another each time, and for what "..." stands for.  An ADD's answer need not be shown."""
    if not shown and typed[:1] == ["{"]:
        return True
    wanted = (".*".join(map(re.escape, plain(line).split("..."))) for line in shown)
    pairs = list(zip_longest(wanted, map(plain, typed)))
    return all(one is not None and other is not None and re.fullmatch(one, other) for one, other in pairs)


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_transcript(section: Section, shell: Callable[..., Shell], request: pytest.FixtureRequest) -> None:
    if any(plugin.get("kind") == "ipvlan" for network in section.networks.values() for plugin in plugins(network)):
        request.getfixturevalue("ipvlan")
    typist, wrong, page = shell(section.networks), list[str](), section.page.read_text()
    for block in section.blocks:
        if block.kind == "console":
            anew = ""
            for where, command, shown in commands(block.text):
                typed = typist.type(where, command)
                if not same(shown, typed):
                    wrong.append("\n".join([f"{where}# {command}", "shown:", *shown, "typed:", *typed]))
                right = shown if same(shown, typed) else typed
                anew += "".join(f"{line}\n" for line in (f"{where}# {command}", *right))
            page = page.replace(block.text, anew)
    if os.environ.get("HPN_WRITE_PAGES"):
        section.page.write_text(page)
    else:
        assert not wrong, "\n\n".join(wrong)
