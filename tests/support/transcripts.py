"""Run the commands of a page's transcript again, and compare their output with the page."""

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha512
from itertools import takewhile, zip_longest
from typing import Any

import pytest
from support.pages import Section, commands
from support.shipped import plugins
from support.topology import Host, Pod

from base.protocol.location import IPAM_DIR, STATE_DIR
from ctl import main as ctl

# Text that differs in each run.
VARIES = (
    (re.compile(r"\b(?!02:00:00:00:00:)[0-9a-f]{2}(:[0-9a-f]{2}){5}\b"), "MAC"),
    (re.compile(r"\bfe80::[0-9a-f:]+"), "fe80::"),
    (re.compile(r"@if\d+"), "@if"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\S*\d)?"), "TIME"),
    (re.compile(r"\s+"), " "),
)


@dataclass
class Shell:
    """Run a transcript's commands: cnitool and hpn in this process, all others on the machine."""

    host: Host
    make_pod: Callable[[], Pod]
    capsys: pytest.CaptureFixture[str]
    networks: dict[str, dict[str, Any]]
    pods: dict[str, Pod] = field(default_factory=dict)
    results: dict[tuple[str, str, str], Any] = field(default_factory=dict)

    def pod(self, name: str) -> Pod:
        if name not in self.pods:
            self.pods[name] = self.make_pod()
            # Without duplicate address detection the output does not depend on the time of the command.
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
        # The default paths of both; under HPN_STATE_DIR, as here, the leases are beside the journal.
        for path, default in ((f"{self.host.state}/ipam", IPAM_DIR), (str(self.host.state), STATE_DIR)):
            out = out.replace(path, default)
        return [line.rstrip() for line in out.rstrip().splitlines()]

    def cnitool(self, command: str, network: str, path: str, environ: dict[str, str]) -> str:
        """Call the plugins of a list with one plugin, as cnitool does, and return the output."""
        name = path.rpartition("/")[2]
        folder = environ.pop("NETCONFPATH", "/etc/cni/net.d").rpartition("/")[2]
        conf = self.networks[folder] if folder in self.networks else next(iter(self.networks.values()))
        assert conf["name"] == network
        (plugin,) = plugins(conf)
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
            return f'plugin type="hpn" failed ({command}): {text}'
        if command == "add":
            self.results[key] = answer
        return json.dumps(answer, indent=4) if answer else ""

    def hpn(self, words: list[str]) -> str:
        leases = ["--data-dir", f"{self.host.state}/ipam"]
        journal = ["--state-dir", str(self.host.state)]
        of_journal = dict.fromkeys(("list", "inspect", "check", "hints", "devices"), journal)
        both = dict.fromkeys(("gc", "repair"), journal + leases)
        # Some commands precede the first ADD, which makes these folders.
        for folder in (self.host.state, self.host.state / "ipam"):
            folder.mkdir(mode=0o700, exist_ok=True)
        self.capsys.readouterr()
        ctl.main(["hpn", *words, *{**of_journal, **both}.get(words[0], leases)])
        return "".join(self.capsys.readouterr())

    def shell(self, where: str, command: str) -> str:
        for name, pod in self.pods.items():
            command = re.sub(rf"\b{name}\b", pod.name, command)
        into = [] if where == "node" else ["ip", "netns", "exec", self.pod(where).name]
        done = subprocess.run([*into, "sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
        return done.stdout + done.stderr

    def retype(self, section: Section, kind: str) -> tuple[str, list[str]]:
        """Return the page with the output of its transcripts of this kind, and each command with another output."""
        page, wrong = section.page.read_text(), list[str]()
        for block in section.blocks:
            if block.kind == kind:
                anew = ""
                for where, command, shown in commands(block.text):
                    typed = self.type(where, command)
                    right = same(shown, typed)
                    if not right:
                        wrong.append("\n".join([f"{where}# {command}", "shown:", *shown, "typed:", *typed]))
                    anew += "".join(f"{line}\n" for line in (f"{where}# {command}", *(shown if right else typed)))
                page = page.replace(block.text, anew)
        return page, wrong


def plain(line: str) -> str:
    for pattern, name in VARIES:
        line = pattern.sub(name, line)
    return line.strip()


def same(shown: list[str], typed: list[str]) -> bool:
    """Compare all but the text that differs in each run, and the text that "..." replaces; an ADD's output may be
    missing."""
    if not shown and typed[:1] == ["{"]:
        return True
    wanted = (".*".join(map(re.escape, plain(line).split("..."))) for line in shown)
    pairs = list(zip_longest(wanted, map(plain, typed)))
    return all(one is not None and other is not None and re.fullmatch(one, other) for one, other in pairs)
