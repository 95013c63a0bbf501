"""The remedy of each shortage, by the kernel's error number."""

import errno
import os

import pytest

from base.protocol.errors import IoFailure, TryAgain, as_cni_error


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EMFILE, "raise the limit of open files of the process that calls hpn, or of hpn-agent"),
        (errno.ENFILE, "raise fs.file-max"),
        (errno.ENOMEM, "free memory on the node, or raise the limit of memory of the process that calls hpn"),
    ],
)
def test_whose_limit_it_is(number: int, remedy: str) -> None:
    failure = IoFailure("reading a record")
    failure.__cause__ = OSError(number, os.strerror(number), "/run/hpn/x")
    found = as_cni_error(failure)
    assert isinstance(found, TryAgain)
    assert found.msg.startswith(f"{os.strerror(number)}: /run/hpn/x; repeat the call, and if that stays, {remedy}")
