"""Every way an answer can be an error.

Codes 1-8, 11, 50 and 51 are the specification's (CNI SPEC 1.1.0, "Error", and libcni's types.go for 8);
100 and above are ours and listed in docs/errors.md.  A class per answer a caller can act on: nobody
formats a code into text, and only dispatch.py turns an exception into JSON.
"""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

Failure = TypeVar("Failure", bound=Exception)


class CniError(Exception):
    """An answer to the runtime: ``msg`` names key, value and remedy; the exception's notes become ``details``."""

    code: ClassVar[int] = 999

    def __init__(self, msg: str, details: str = "") -> None:
        super().__init__(msg)
        self.msg = msg
        if details:
            self.add_note(details)

    @property
    def details(self) -> str:
        return "; ".join(getattr(self, "__notes__", ()))


class IncompatibleVersion(CniError):
    """The configuration's cniVersion is not one we speak, or is older than the command."""

    code = 1


class UnsupportedField(CniError):
    """A key we do not know; refused so that a misspelled option is never silently ignored."""

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
    """The configuration is understood and cannot be served; the message names key and value."""

    code = 7


class InvalidNetns(CniError):
    """CNI_NETNS is the namespace the plugin itself runs in."""

    code = 8


class TryAgain(CniError):
    """Busy; the runtime may simply repeat the call."""

    code = 11


class NotAvailable(CniError):
    """STATUS: no ADD can be served now."""

    code = 50


class InterfaceExists(CniError):
    """The name asked for is taken in the pod, or this attachment already stands."""

    code = 100


class LinkUnavailable(CniError):
    """The master is absent, down, or of a kind that cannot carry the attachment."""

    code = 101


class AddressUnavailable(CniError):
    """A requested address is taken, reserved or in no range."""

    code = 102


class AddressHeld(AddressUnavailable):
    """A requested address is another's: it may be free once what is dead is released."""


class PoolExhausted(CniError):
    """Every address of a range set is held."""

    code = 103


class AddressConflict(CniError):
    """Duplicate address detection found another owner on the link."""

    code = 104


class KernelRefused(CniError):
    """The kernel answered a request with an errno nobody above expected."""

    code = 105


class DelegateFailed(CniError):
    """The IPAM plugin was not found, died, or printed something that is not CNI."""

    code = 106


class DelegateNotRun(DelegateFailed):
    """It was never started, so it holds nothing."""


class CheckFailed(CniError):
    """CHECK: what ADD promised is not there any more."""

    code = 107


class RecordUnreadable(CniError):
    """A state file was truncated, altered or written by a newer version; it has been set aside."""

    code = 108


class DeviceTaken(CniError):
    """``devices`` are all that would have done but for the attachments that have them."""

    def __init__(self, msg: str, *devices: str) -> None:
        super().__init__(msg)
        self.devices = devices


class DeviceInUse(DeviceTaken):
    """The device belongs to another attachment."""

    code = 109


class NoneFree(DeviceTaken, LinkUnavailable):
    """Any one of several devices would have done, and none is free."""


class GidTableFull(CniError):
    """An RDMA port has no room for the GIDs of another interface."""

    code = 110


class DelegateError(CniError):
    """A delegate's own error, passed on under its own code."""

    def __init__(self, code: int, msg: str, details: str = "") -> None:
        super().__init__(msg, details)
        self.code = code  # type: ignore[misc]  # the one error whose code is another program's


def combine(failures: Sequence[Failure]) -> Failure:
    """Several failures as one: the first, the others in its details."""
    first, *others = failures
    for other in others:
        first.add_note(f"also: {other}")
    return first


class doing:  # noqa: N801  # read as a word, as suppress is
    """Add "while <what>" to whatever passes through."""

    # Not a generator with contextmanager, which costs five times as much: there are several in every ADD.
    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception):
            error.add_note(f"while {self._what}")
