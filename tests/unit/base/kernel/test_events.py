"""Errors of inotify, which have the numbers of other limits."""

import errno
import resource

import pytest

from base.kernel import events


def test_no_descriptor_is_left() -> None:
    """It is no limit of inotify's, although the number is the same (man 2 inotify_init1)."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files") as raised:
            events.open_directories()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert raised.value.errno == errno.EMFILE
