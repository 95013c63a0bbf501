"""The errors of CNI answers: one class for each error that a caller can act on.

Codes 1-8, 11, 50 and 51 are the specification's (CNI SPEC 1.1.0, "Error", and libcni's types.go for 8).  Codes from 100
on are ours; docs/user/errors.md lists them.  Only dispatch.py turns an exception into JSON.
"""

import errno
from collections.abc import Sequence
from typing import ClassVar, TypeVar

Failure = TypeVar("Failure", bound=Exception)


class CniError(Exception):
    """An error for the runtime.  ``msg`` names key, value and remedy.  The exception's notes become ``details``."""

    code: ClassVar[int] = 999

    def __init__(self, msg: str, details: str = "") -> None:
        super().__init__(msg)
        self.msg = msg
        if details:
            self.add_note(details)

    @property
    def details(self) -> str:
        """All notes, joined by "; "."""
        return _notes(self)


class IncompatibleVersion(CniError):
    """The configuration's cniVersion is not supported, or lacks the command."""

    code = 1


class UnsupportedField(CniError):
    """A key is unknown.  It is refused, so that a misspelled option is not silently ignored."""

    code = 2


class BadEnvironment(CniError):
    """A CNI_ variable is missing or invalid; the message names it."""

    code = 4


class IoFailure(CniError):
    """State could not be read from or written to disk, or stdin could not be read."""

    code = 5


class DecodeFailure(CniError):
    """stdin is not one JSON object."""

    code = 6


class InvalidConfig(CniError):
    """The configuration is understood, but cannot be served."""

    code = 7


class InvalidNetns(CniError):
    """CNI_NETNS is the namespace in which the plugin itself runs."""

    code = 8


class TryAgain(CniError):
    """Something is busy, or not finished.  The runtime may repeat the call."""

    code = 11


class NotAvailable(CniError):
    """STATUS: an ADD would fail now."""

    code = 50


class InterfaceExists(CniError):
    """The pod has an interface of the requested name, or the attachment exists already."""

    code = 100


class LinkUnavailable(CniError):
    """The attachment's lower interface or device is absent, down, or of a wrong kind."""

    code = 101


class AddressUnavailable(CniError):
    """A requested address is held, reserved or in no range."""

    code = 102


class AddressHeld(AddressUnavailable):
    """Another attachment holds a requested address.  It may be free once dead leases are released."""


class PoolExhausted(CniError):
    """All addresses of a range set are held.  ``sets`` are the keys of the range sets that need another block."""

    code = 103

    def __init__(self, msg: str, *sets: str) -> None:
        super().__init__(msg)
        self.sets = sets


class AddressConflict(CniError):
    """Another host on the link has the address."""

    code = 104


class KernelRefused(CniError):
    """The kernel refused something with an errno that has no other class."""

    code = 105


class DelegateFailed(CniError):
    """The IPAM plugin was not found, died, or printed no CNI document."""

    code = 106


class DelegateNotRun(DelegateFailed):
    """The IPAM plugin was not started, so it holds nothing for the attachment."""


class CheckFailed(CniError):
    """CHECK: a part of the attachment is missing or changed."""

    code = 107


class RecordUnreadable(CniError):
    """A state file was truncated, altered or written by a newer version.  It has been set aside."""

    code = 108


class DeviceTaken(CniError):
    """Other attachments own the device.  ``devices`` are all devices that would fit if they were free."""

    def __init__(self, msg: str, *devices: str) -> None:
        super().__init__(msg)
        self.devices = devices


class DeviceInUse(DeviceTaken):
    """Another attachment owns the device."""

    code = 109


class NoneFree(DeviceTaken, LinkUnavailable):
    """None of the fitting devices is free."""


class GidTableFull(CniError):
    """An RDMA port has no room for the GIDs of another interface."""

    code = 110


class BackendRefused(CniError):
    """The shared backend of a cluster's nodes refuses a request, and would refuse it again."""

    code = 111


class Unreachable(TryAgain):
    """The shared backend of a cluster's nodes did not answer.  It may have done what was requested, or not."""


class DelegateNotStarted(TryAgain, DelegateNotRun):
    """No process can be started now."""


class DelegateError(CniError):
    """An error that the IPAM plugin itself answered, passed on with its own code."""

    def __init__(self, code: int, msg: str, details: str = "") -> None:
        super().__init__(msg, details)
        self.code = code  # type: ignore[misc]  # the one error with another program's code


# The kernel's answers that concern the moment, not the request.
BUSY = frozenset({errno.EAGAIN, errno.EBUSY})
# It has no descriptor, or no memory.  Then nothing that was found missing is known to be missing.
# The remedies are by error number: the limits are the process's, the system's, and those of its memory.
_WHOSE = "of the process that calls hpn, or of hpn-agent"
_MORE = {
    errno.EMFILE: f"raise the limit of open files {_WHOSE}",
    errno.ENFILE: "raise fs.file-max",
    errno.ENOMEM: f"free memory on the node, or raise the limit of memory {_WHOSE}",
}
SHORT = frozenset(_MORE)


def combine(failures: Sequence[Failure]) -> Failure:
    """Several failures as one: the first, with the others as its notes."""
    first, *others = failures
    for other in others:
        first.add_note(f"also: {other}")
    return first


def as_cni_error(error: BaseException) -> CniError:
    """The exception as the caller's error, with its notes.  An OSError becomes KernelRefused, or TryAgain if something
    is busy.  Any other exception that is not a CniError is a bug, with code 999.

    An error of any class becomes TryAgain if its cause is a shortage of descriptors or memory.  Its own remedy, such as
    the removal of a file, would be wrong.
    """
    if short := _shortage(error):
        where = f": {short.filename}" if short.filename else ""
        return TryAgain(
            f"{short.strerror}{where}; repeat the call, and if that stays, {_MORE[short.errno or 0]}",
            _notes(error),
        )
    if isinstance(error, CniError):
        return error
    if isinstance(error, OSError):
        refused = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        return (TryAgain if error.errno in BUSY else KernelRefused)(refused, _notes(error))
    return CniError(f"internal error: {type(error).__name__}: {error}", _notes(error))


def _shortage(error: BaseException | None) -> OSError | None:
    """The shortage among an error and its causes; None without one."""
    seen = set[int]()
    while error and id(error) not in seen:
        if isinstance(error, OSError) and error.errno in SHORT:
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _notes(error: BaseException) -> str:
    return "; ".join(getattr(error, "__notes__", ()))


class doing:  # noqa: N801  # in lower case, as suppress is
    """A context manager that adds the note "while <what>" to an exception that leaves it."""

    # Not a generator with contextmanager, which costs five times as much.  Every ADD enters several.
    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            error.add_note(f"while {self._what}")
