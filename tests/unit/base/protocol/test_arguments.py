"""One attachment's requests: CNI_ARGS, args.cni and runtimeConfig."""

from typing import Any

import pytest

from base.protocol import arguments
from base.protocol.errors import BadEnvironment, InvalidConfig

MULTUS = (
    "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u;"
    "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u"
)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", {}),
        (";", {}),
        ("IP=10.0.0.5", {"IP": "10.0.0.5"}),
        ("IP=10.0.0.5;", {"IP": "10.0.0.5"}),  # a trailing separator
        ("IP=", {"IP": ""}),
        ("IP=a;IP=b", {"IP": "b"}),  # the last one counts
        ("MAC=02:00:00:00:00:01;GATEWAY=10.0.0.1", {"MAC": "02:00:00:00:00:01", "GATEWAY": "10.0.0.1"}),
        ("FOO=1;IgnoreUnknown=1", {"FOO": "1", "IgnoreUnknown": "1"}),
        ("IgnoreUnknown=true;FOO=1", {"FOO": "1", "IgnoreUnknown": "true"}),
        ("IgnoreUnknown=True;FOO=1", {"FOO": "1", "IgnoreUnknown": "True"}),
        (  # Multus' own, twice
            MULTUS,
            {
                "IgnoreUnknown": "1",
                "K8S_POD_NAMESPACE": "default",
                "K8S_POD_NAME": "p",
                "K8S_POD_INFRA_CONTAINER_ID": "c1",
                "K8S_POD_UID": "u",
            },
        ),
    ],
)
def test_cni_args(text: str, pairs: dict[str, str]) -> None:
    assert arguments.cni_args(text) == pairs


@pytest.mark.parametrize(
    ("text", "msg"),
    [
        ("IP", "CNI_ARGS: 'IP' is not KEY=VALUE; separate pairs by ';'"),
        ("=x", "CNI_ARGS: '=x' is not KEY=VALUE; separate pairs by ';'"),
        ("IP=a=b", "CNI_ARGS: 'IP=a=b' is not KEY=VALUE; separate pairs by ';'"),  # libcni: exactly one "="
        ("IP=a;MAC", "CNI_ARGS: 'MAC' is not KEY=VALUE; separate pairs by ';'"),
        (
            "IgnoreUnknown=1;IP",
            "CNI_ARGS: 'IP' is not KEY=VALUE; separate pairs by ';'",
        ),  # an empty key is no unknown key
        (
            "K8S_POD_UID=a;K8S_POD_UID=b",
            "CNI_ARGS: K8S_POD_UID is both 'a' and 'b'; the runtime must send one pod",
        ),
        ("FOO=1", "CNI_ARGS: unknown FOO='1'; remove, or add IgnoreUnknown=1"),
        ("ip=1", "CNI_ARGS: unknown ip='1'; remove, or add IgnoreUnknown=1"),  # keys are case-sensitive
        (" IP=1", "CNI_ARGS: unknown  IP='1'; remove, or add IgnoreUnknown=1"),
        ("B=2;IP=1;A=1", "CNI_ARGS: unknown A='1', B='2'; remove, or add IgnoreUnknown=1"),  # all of them
        ("FOO=1;IgnoreUnknown=0", "CNI_ARGS: unknown FOO='1'; remove, or add IgnoreUnknown=1"),
        ("FOO=1;IgnoreUnknown=", "CNI_ARGS: unknown FOO='1'; remove, or add IgnoreUnknown=1"),
        ("FOO=1;IgnoreUnknown=yes", "CNI_ARGS: unknown FOO='1'; remove, or add IgnoreUnknown=1"),
    ],
)
def test_cni_args_refused(text: str, msg: str) -> None:
    with pytest.raises(BadEnvironment) as refused:
        arguments.cni_args(text)
    assert refused.value.msg == msg


@pytest.mark.parametrize(
    ("runtime", "args_cni", "env", "answer"),
    [
        ("r", "a", "e", "r"),
        (None, "a", "e", "a"),
        (None, None, "e", "e"),
        (None, None, None, None),
        ("r", None, None, "r"),
        ("", "a", "e", "a"),  # a falsy value is no request
        ("", "", "e", "e"),
        ([], None, "e", "e"),
        ("", "", "", None),
        (["x"], "a", "e", ["x"]),  # as a whole, not merged
        (None, 0, "e", 0),
    ],
)
def test_requested(runtime: Any, args_cni: Any, env: Any, answer: Any) -> None:
    conf: dict[str, Any] = {"runtimeConfig": {}, "args": {"cni": {}}}
    if runtime is not None:
        conf["runtimeConfig"]["mac"] = runtime
    if args_cni is not None:
        conf["args"]["cni"]["mac"] = args_cni
    assert arguments.requested(conf, {} if env is None else {"MAC": env}, "mac", "MAC") == answer


@pytest.mark.parametrize(
    "conf", [{}, {"runtimeConfig": None, "args": None}, {"args": {}}, {"args": {"cni": None}}], ids=repr
)
def test_requested_of_nothing(conf: dict[str, Any]) -> None:
    assert arguments.requested(conf, {}, "mac", "MAC") is None


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ({"runtimeConfig": []}, "runtimeConfig []"),
        ({"runtimeConfig": "mac"}, "runtimeConfig 'mac'"),
        ({"runtimeConfig": 5}, "runtimeConfig 5"),
        ({"args": ["cni"]}, "args ['cni']"),
        ({"args": {"cni": "x"}}, "args.cni 'x'"),
        ({"runtimeConfig": {"mac": "r"}, "args": 5}, "args 5"),  # refused although it is not needed
    ],
)
def test_requested_of_something_else(conf: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        arguments.requested(conf, {}, "mac", "MAC")
    assert refused.value.msg == f"{named} is not an object"
