"""Checks values of a device file, and converts them to their form in sysfs; and the messages for refused ones."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from base.protocol import memlock, spec, written
from base.protocol.errors import combine
from base.yaml_document import SHOWN, BadFile, shown
from node.model import PfName

# What Go's strconv.Atoi accepts, without negative numbers, because the text is split at "-" first
# (sriov-network-device-plugin: pkg/resources/deviceSelectors.go, isSelected).
_FUNCTION: Final = re.compile(r"\+?[0-9]{1,18}", re.ASCII)


def entries(texts: Sequence[str]) -> tuple[tuple[PfName, ...], list[str]]:
    """The PFs, and a sentence for each text or part that selects nothing.

    As in sriov-network-device-plugin, the first of several texts with one name counts, and its numbers up to the first
    invalid one.
    """
    found, wrong = dict[str, PfName](), list[str]()
    for text in texts:
        name, sign, numbers = text.partition("#")
        if first := found.get(name.lower()):
            wrong.append(
                f"{text!r} is ignored, because {first.name!r} stands before it; write one entry, such as {_JOINED}"
            )
            continue
        parts, why = _ranges(numbers) if sign else (None, "")
        found[name.lower()] = PfName(name, parts)
        if why:
            wrong.append(f"{text!r}: {why}; write {_JOINED}")
    return tuple(found.values()), wrong


_JOINED: Final = "'rail0#0,2-7'"


def _ranges(numbers: str) -> tuple[tuple[range, ...], str]:
    if "#" in numbers:
        return (), "a text with two '#' selects nothing"
    found, empty = list[range](), ""
    for part in numbers.split(","):
        first, dash, last = part.partition("-")
        if not _FUNCTION.fullmatch(first) or (dash and not _FUNCTION.fullmatch(last)):
            return tuple(found), f"{part!r} is not a number or range, and it and all after it select nothing"
        found.append(range(int(first), int(last or first) + 1))
        if not found[-1]:
            empty = empty or f"{part!r} begins above its end, and selects nothing"
    return tuple(found), empty


_PCI_ID: Final = re.compile(r"(0x)?[0-9a-f]{4}")
_PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_DRIVER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_NUMBER: Final = re.compile(r"[0-9]{1,10}", re.ASCII)


def _text(value: Any) -> Any:
    """A number as text, because YAML reads 1018 without quotes as a number."""
    return str(value) if type(value) is int else value


def _pci_id(text: str) -> str:
    if not _PCI_ID.fullmatch(text.lower()):
        raise ValueError("is not a PCI ID; write four hexadecimal digits, as lspci -n shows them: 15b3")
    return text.lower().removeprefix("0x")


def _pci_address(text: str) -> str:
    if not _PCI_ADDRESS.fullmatch(text.lower()):
        raise ValueError("is not a PCI address; write it as lspci -D does, 0000:3b:00.2")
    return text.lower()


def _interface(name: str) -> str:
    if not name.isprintable() or (why := spec.bad_ifname(name, spec.ALTNAME)):
        raise ValueError(f"cannot name an interface: {'it is not printable' if not name.isprintable() else why}")
    return name


def _driver(name: str) -> str:
    if not _DRIVER.fullmatch(name):
        raise ValueError("cannot name a driver; write it as in /sys/bus/pci/drivers, mlx5_core")
    return name


def _index(text: str) -> str:
    if not _NUMBER.fullmatch(text):
        raise ValueError("is not an ACPI index; write the number in the device's acpi_index")
    return text


def _pf(text: str) -> str:
    """ "rail0#0-3"."""
    _interface(_name(text))
    return text


def _root_device(text: str) -> str:
    """ "0000:3b:00.0#0-3"."""
    _pci_address(_name(text))
    return text.lower()


def _name(text: str) -> str:
    """The text before '#'.  Raises ValueError if a part after it selects nothing."""
    (found,), wrong = entries([text])
    if wrong:
        raise ValueError(wrong[0].partition(": ")[2])
    return found.name


def pkey(text: str) -> int:
    """ "0x8001" as 1, without the membership bit.  Raises ValueError."""
    number = 0
    with suppress(ValueError):
        number = written.partition_key(text)
    if number > 0xFFFF or not number & 0x7FFF:
        raise ValueError("is not a partition key; write it as 0x8001")
    return number & 0x7FFF


def _pkey(text: str) -> str:
    pkey(text)
    return text


def _memlock(value: Any) -> Any:
    if why := memlock.why_refused(value):
        raise ValueError(why)
    return value


Memlock = Annotated[Any, AfterValidator(_memlock)]
PciId = Annotated[str, BeforeValidator(_text), AfterValidator(_pci_id)]
PciAddress = Annotated[str, AfterValidator(_pci_address)]
Interface = Annotated[str, BeforeValidator(_text), AfterValidator(_interface)]
Driver = Annotated[str, AfterValidator(_driver)]
AcpiIndex = Annotated[str, BeforeValidator(_text), AfterValidator(_index)]
Pf = Annotated[str, BeforeValidator(_text), AfterValidator(_pf)]
RootDevice = Annotated[str, AfterValidator(_root_device)]
PKey = Annotated[str, BeforeValidator(_text), AfterValidator(_pkey)]

# A DNS-1123 subdomain has at most 253 characters, and nine of them are for "requests.".
_PREFIX_MOST: Final = 253 - len("requests.")
_NAME_MOST: Final = 63
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_RESOURCE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def why_refused(full_name: str) -> str:
    """Why kubelet refuses a resource of this name ("rdma/hca"), with the remedy; empty if it accepts it.

    Its rule is IsExtendedResourceName (kubernetes: pkg/apis/core/v1/helper/helpers.go).  That calls IsQualifiedName
    (apimachinery: pkg/util/validation/validation.go) for the name after "requests.", as in a quota.
    """
    prefix, slash, name = full_name.partition("/")
    if not slash or "/" in name:
        return "kubelet requires prefix/name, with one '/'; write it as rdma/hca_shared"
    return _why_no_prefix(prefix) or _why_no_name(name)


def _why_no_prefix(prefix: str) -> str:
    if not prefix:
        return "it has no prefix, and kubelet requires one; write it as example.com/rail0_vf"
    if prefix.endswith("kubernetes.io"):
        return "prefixes that end with kubernetes.io are Kubernetes' own; choose another"
    if prefix.startswith("requests."):
        return "a prefix that begins with 'requests.' is a quota's; choose another"
    if len(prefix) > _PREFIX_MOST:
        return f"its prefix has {len(prefix)} characters, and kubelet accepts at most {_PREFIX_MOST}; shorten it"
    if not all(map(_LABEL.fullmatch, prefix.split("."))):
        return (
            "kubelet accepts a prefix only if it could be a DNS name: of a-z, 0-9, '-' and '.'; each part between dots "
            "begins and ends with a letter or digit; write it as example.com"
        )
    return ""


def _why_no_name(name: str) -> str:
    if len(name) > _NAME_MOST:
        return (
            f"its name has {len(name)} characters after the '/', and kubelet accepts at most {_NAME_MOST}; shorten it"
        )
    if not _RESOURCE.fullmatch(name):
        return (
            "kubelet accepts a name only of A-Z, a-z, 0-9, '-', '_' and '.'; the first and last must be a letter or "
            "digit; write it as rail0_vf"
        )
    return ""


_FINDINGS: Final = 10  # findings of one object
# The fault of a value and the remedy, by pydantic's type of error.
_TEXTS: Final = {
    "string_type": "is not text; write it in quotes",
    "list_type": "is not a list; write it in [ ]",
    "dict_type": "is not an object; write it in { }",
    "model_type": "is not an object; write it in { }",
    "int_type": "is not a whole number; write digits, without quotes",
    "int_from_float": "is not a whole number; write digits, without quotes",
    "bool_type": "is neither true nor false; write one of them, without quotes",
    "float_type": "is not a number; write digits, without quotes",
    "missing": "is missing; add it",
    "too_short": "is empty; add an entry",
}


def below(path: str, step: str | int) -> str:
    """The path of a member or entry: resourceList[2].selectors."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    key = step if step.isascii() and step.isprintable() and len(step) < SHOWN else shown(step)
    return f"{path}.{key}" if path else key


def meant(word: str, known: Iterable[str]) -> str:
    """'; did you mean X?' if one of the known words is similar; else empty."""
    folded = {one.lower(): one for one in known}
    close = get_close_matches(word.lower(), folded, n=1)
    return f"; did you mean {folded[close[0]]}?" if close else ""


class Object(BaseModel):
    """An object of a device file.  Unknown keys and converted values are refused."""

    model_config = ConfigDict(strict=True, extra="forbid")


Taken = TypeVar("Taken", bound=Object)


def validated(model: type[Taken], value: Any, path: str) -> Taken:
    """The object at a place of the file.  Raises BadFile, with further findings as its notes."""
    try:
        return model.model_validate(value)
    except ValidationError as e:
        findings = e.errors(include_url=False, include_context=True)
        raise combine([BadFile(_finding(found, model, path)) for found in findings[:_FINDINGS]]) from e


def _finding(found: Any, model: type[BaseModel], path: str) -> str:
    for step in found["loc"]:
        path = below(path, step)
    kind, value = found["type"], "" if found["type"] == "missing" else f" {shown(found['input'])}"
    if kind == "extra_forbidden":
        name = str(found["loc"][-1])
        remedy = meant(name, model.model_fields) or "; correct it, or remove it"
        return f"{path}{value} is not a key that hpn knows{remedy}"
    if kind == "literal_error":
        words = found["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        given = found["input"] if isinstance(found["input"], str) else ""
        return f"{path}{value} is not one of {', '.join(words)}{meant(given, words) or '; write one of them'}"
    if kind in _TEXTS:
        return f"{path}{value} {_TEXTS[kind]}"
    if kind == "value_error":
        return f"{path}{value} {str(found['msg']).removeprefix('Value error, ')}"
    return f"{path}{value}: {str(found['msg']).replace('Input should be', 'it must be')}"
