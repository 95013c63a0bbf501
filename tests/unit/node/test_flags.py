"""The command lines in manifests, of hpn and of other device plugins."""

from pathlib import Path

import pytest

from node.flags import Flags, Wrong, parse, usage

FILE = Path("/etc/x.json")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("", Flags()),
        ("--config /etc/x.json", Flags(config=FILE)),
        ("--config=/etc/x.json --kubelet-dir /k", Flags(config=FILE, kubelet=Path("/k"))),
        ("--check /etc/x.json", Flags(check=FILE)),
        ("--check=/etc/x.json --json", Flags(check=FILE, json=True)),
        ("--config-file /etc/x.json --use-cdi", Flags(config=FILE, cdi=True)),
        ("-config-file=/etc/x.json -resource-prefix mellanox.com", Flags(config=FILE, prefix="mellanox.com")),
        ("--log-dir=sriovdp --log-level=10", Flags()),
        ("--cni-bin-dir=/var/lib/cni/bin", Flags(plugins=Path("/var/lib/cni/bin"))),
        ("--kubeconfig=/credential", Flags(kubeconfig="/credential")),
        ("--vmodule x=1 -stderrthreshold INFO --log_dir /l --alsologtostderr=false", Flags()),
        ("--logtostderr -use-cdi=true -v", Flags(cdi=True, version=True)),
        ("--use-cdi=false", Flags()),
        ("--version", Flags(version=True)),
        ("version", Flags(version=True)),
        ("-v", Flags(version=True)),
        ("--help", Flags(help=True)),
        ("help", Flags(help=True)),
    ],
)
def test_a_line(line: str, meant: Flags) -> None:
    assert parse(line.split()) == meant


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--config", "argument --config: expected one argument"),
        ("--konfig x", "unrecognized arguments: --konfig x"),
        ("--conf x", "unrecognized arguments: --conf x"),
        ("-", "unrecognized arguments: -"),
        ("serve", "unrecognized arguments: serve"),
        ("--use-cdi=maybe", "argument --use-cdi: 'maybe' is neither true nor false; write the option alone, or =false"),
        (
            f"--kubelet-dir /{'k' * 60}",
            f"argument --kubelet-dir: '/{'k' * 60}' is longer than 60 bytes",
        ),
        ("--kubeconfig k", "argument --kubeconfig: 'k' is not an absolute path; write one"),
        ("--kubelet-dir k", "argument --kubelet-dir: 'k' is not an absolute path"),
    ],
)
def test_a_line_that_means_nothing(line: str, says: str) -> None:
    with pytest.raises(Wrong) as refused:
        parse(line.split())
    assert str(refused.value).startswith(says)
    assert str(refused.value).endswith("; see: hpn node --help")


def test_help_is_what_one_types() -> None:
    text = usage()
    assert "\n  --config FILE        the configuration: hpn's own" in text
    assert "\n  --use-cdi [true|false]\n                       give devices by CDI names\n" in text
    assert "==SUPPRESS==" not in text
