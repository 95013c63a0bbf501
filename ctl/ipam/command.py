"""hpn ipam: show addresses and their owners, release, verify and move them."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from base.protocol.errors import CniError
from base.protocol.spec import Json
from base.table import aligned, printable
from ctl.command_line import add_data_dir, as_document, data_dir, parser_for
from ctl.ipam import cluster, import_export
from ctl.ipam.cluster import own_blocks
from ctl.screen import moment, text
from ipam import sandboxes
from ipam.inventory import STATES, networks, pools, state
from ipam.stores import access
from ipam.stores.holdings import Contents, Kept, Lease, Listed, Lost

_ID_DIGITS: Final = 12  # digits of a container's id: shown, and enough to name it
_SIGNS: Final = "#x~=!*?"
_MOMENTS: Final = ("released", "cool", "until")
_WHOSE: Final = (
    "a container (its id, or at least its first 12 digits) or a pod ([namespace/]name), with or without :ifname"
)
_COLUMNS: Final = ("ADDRESS", "POD", "IFNAME", "STATE", "SINCE", "CONTAINER")


def answer(words: Sequence[str]) -> tuple[str, int]:
    """The command's output and exit status."""
    options = parser().parse_args(words)
    if options.command != "import":  # which creates it
        data_dir(options)
    if options.command in ("blocks", "pods", "release-node", "retire") or getattr(options, "cluster", False):
        return cluster.answer(options)
    command = {
        "show": _show,
        "lease": _lease,
        "release": _release,
        "gc": _gc,
        "verify": _verify,
        "import": import_export.import_leases,
        "export": import_export.export_leases,
    }[options.command]
    return command(options)


def parser() -> argparse.ArgumentParser:
    """The options of all subcommands."""
    common = argparse.ArgumentParser(add_help=False)
    add_data_dir(common)
    whole = parser_for("ipam", "Show addresses, release them, move them.", "example: hpn ipam lease default/worker-0")
    commands = whole.add_subparsers(dest="command", required=True)
    for name, about, some in (
        ("show", "show the pools of every network: used, dead and free addresses, and their owners", "*"),
        ("lease", "show all details of the leases of an attachment, an address or a pod", "?"),
        (
            "gc",
            "release addresses of provably dead pods, and those that a probe found in use by other hosts (conflict)",
            "*",
        ),
        ("verify", "check index, leases, checksums and quarantine; changes nothing", "*"),
    ):
        command = commands.add_parser(name, help=about, description=about, parents=[common])
        if name == "lease":
            command.add_argument("what", nargs=some, default="", help=f"{_WHOSE}, or an address")
        else:
            command.add_argument("network", nargs=some, help="default: all")
        if name in ("show", "lease", "gc"):
            command.add_argument("--json", action="store_true", help="one JSON document")
        if name == "show":
            cluster.add_cluster(command, "the cluster's shared pools, from its backend")
        if name == "gc":
            command.add_argument("--dry-run", action="store_true", help="only report what would be released")
            cluster.add_cluster(command, "suspect dead nodes, and remove their blocks after the grace")
    cluster.add_to(commands, common)
    import_export.add_to(commands, common)
    release = commands.add_parser("release", help="release one attachment's addresses", parents=[common])
    release.add_argument("network")
    release.add_argument("key", metavar="WHAT", help=f"{_WHOSE}, or an address; it must match exactly one lease")
    release.add_argument("--force", action="store_true", help="also if the pod may be alive")
    return whole


def _show(options: argparse.Namespace) -> tuple[str, int]:
    found = networks(options.data_dir, sandboxes.gone, options.network)
    if options.json:
        return as_document({"dataDir": str(options.data_dir), "networks": [_described(one) for one in found]}), 0
    lines = [line for one in found for line in _pictured(one)]
    return text(lines or [f"no address is held (searched {options.data_dir})"]), 0


def _lease(options: argparse.Namespace) -> tuple[str, int]:
    leases = [
        {"network": network.name, **_about(one)}
        for network in networks(options.data_dir, sandboxes.gone)
        for one in network.listed
    ]
    wanted = [lease for lease in leases if not options.what or _is_called(lease, options.what)]
    if options.json:
        return as_document({"dataDir": str(options.data_dir), "leases": wanted}), 0 if wanted else 1
    blocks = ["\n".join(f"{name:12} {_words(value, name)}" for name, value in one.items()) for one in wanted]
    nothing = f"no lease of {options.what or 'any pod'} in {options.data_dir}"
    return text(["\n\n".join(blocks) or nothing]), 0 if wanted else 1


def _release(options: argparse.Namespace) -> tuple[str, int]:
    (network,) = networks(options.data_dir, sandboxes.gone, [options.network])
    leases = {one.holding.owner.key: one for one in network.listed if isinstance(one.holding, Lease)}
    # An attachment's full name means that one only.
    held = {key: one for key, one in leases.items() if f"{key}" == options.key}
    held = held or {key: one for key, one in leases.items() if _is_called(_about(one), options.key)}
    if not held:
        return text([f"{options.key} holds no address in {network.place}; list the leases: hpn ipam lease"]), 1
    if len(held) > 1:
        return text([f"{options.key} may be {' or '.join(map(str, held))}; nothing was released.  Name one of them"]), 1
    ((key, one),) = held.items()
    ips = ", ".join(map(str, one.holding.ips))
    if state(one) != "dead" and not options.force:
        return text([f"{key} may be alive and use {ips}; let its runtime's DEL release them, or add --force"]), 1
    access.open_in(options.data_dir, network.name, []).release(key)
    return text([f"released {ips} of {key}"]), 0


def _gc(options: argparse.Namespace) -> tuple[str, int]:
    done, failed = release_dead(options.data_dir, options.network, dry_run=options.dry_run)
    if options.json:
        body = {"dataDir": str(options.data_dir), "dryRun": options.dry_run, "released": done, "failed": failed}
        return as_document(body), 1 if failed else 0
    return text([*done, *failed] or ["nothing is provably dead"]), 1 if failed else 0


def release_dead(data_dir: Path, names: Sequence[str] = (), *, dry_run: bool) -> tuple[list[str], list[str]]:
    """Release provably dead leases: a line for each, and one for each network that failed.  Raises CniError."""
    done, failed = list[str](), list[str]()
    for network in networks(data_dir, sandboxes.gone, names):
        dead, conflicts = (
            [_obituary(network, one, dry_run=dry_run) for one in network.listed if state(one) == word]
            for word in ("dead", "conflict")
        )
        if dry_run:
            done += [*dead, *conflicts]
            continue
        try:
            store = access.open_in(data_dir, network.name, done, sandboxes.gone)
            store.collect(None)
            done += dead
            store.release_conflicts()
            done += conflicts
        except CniError as e:
            details = f" ({e.details})" if e.details else ""
            failed.append(f"not all addresses of network {network.name} could be released: {e.msg}{details}")
    return done, failed


def _obituary(network: Contents, one: Listed, *, dry_run: bool) -> str:
    about = _about(one)
    unknown = f"another host (MAC {about['mac']})" if "mac" in about else "a lease that was lost"
    who = " ".join(filter(None, (about.get("containerID", unknown), about.get("ifname"), about.get("pod"))))
    return f"{'would release' if dry_run else 'released'} {network.name}: {_words(about['addresses'])} of {who}"


def _verify(options: argparse.Namespace) -> tuple[str, int]:
    lines = list[str]()
    found = networks(options.data_dir, sandboxes.gone, options.network)
    for network in found:
        store = access.open_in(options.data_dir, network.name, [])
        lines += [f"{network.name}: {problem}" for problem in store.verify()]
    good = f"{len(found)} networks, {sum(len(one.listed) for one in found)} leases: no problem found"
    return text(lines or [good]), 1 if lines else 0


def _described(network: Contents) -> Json:
    return {
        "network": network.name,
        "pools": pools(network),
        "leases": [_about(one) for one in network.listed],
        "unreadableLines": network.unreadable,
        **({"problem": network.problem} if network.problem else {}),
        "quarantine": network.quarantined,
        **({"blocks": blocks} if (blocks := own_blocks(Path(network.place))) != [] else {}),
    }


def _about(one: Listed) -> Json:
    about: Json = {**one.holding.to_json(), "state": state(one), "line": one.line}
    return about if isinstance(one.holding, Lease) else {"state": about["state"], **about}


def _is_called(lease: Json, what: str) -> bool:
    """True if ``what`` can mean this lease, as _WHOSE describes; a pod may lack its namespace."""
    word, _, ifname = what.partition(":")
    container_id, pod = str(lease.get("containerID", "")), str(lease.get("pod", ""))
    is_its_own = word in {container_id, pod, pod.rpartition("/")[2]} - {""}
    is_its_own |= len(word) >= _ID_DIGITS and container_id.startswith(word)
    addresses = {address.partition("/")[0] for address in lease["addresses"]}
    return what in addresses or (is_its_own and ifname in ("", lease.get("ifname")))


def _pictured(network: Contents) -> Iterator[str]:
    """A bar for each pool, and a line for each owner."""
    yield f"{network.name}  ({network.place})"
    blocks = own_blocks(Path(network.place))
    if blocks != []:
        which = "unreadable" if blocks is None else ", ".join(map(str, blocks))
        yield f"  nodes share this pool, and this node allocates from its own blocks ({which}); see: hpn ipam blocks"
    for pool in pools(network):
        of_parent = f"  of {pool['parent']}" if "parent" in pool else ""
        yield f"  {', '.join(pool['ranges']) or 'outside its ranges'}{of_parent}"
        yield f"    {_bar(pool)}"
    if network.listed:
        taken = [one for one in network.listed if state(one) != "free"]
        taken.sort(key=lambda one: [(ip.version, int(ip)) for ip in one.holding.ips])
        rows = aligned([_COLUMNS, *(tuple(map(printable, _row(one))) for one in taken)])
        yield from (f"  {line}" for line in rows)
    if network.problem:
        yield f"  {network.problem}; the next call sets it aside"
    if network.unreadable:
        yield f"  lines {list(network.unreadable)} cannot be read; the next call sets them aside"
    if network.quarantined:
        yield f"  {len(network.quarantined)} files of unreadable leases in {network.place}/quarantine"
    yield ""


def _bar(pool: Json) -> str:
    words = [f"{pool[word]} {word}" for word in STATES if pool[word] or word == "held"]
    if pool["size"] is None:
        return ", ".join(words)
    signs = (sign * -(-cluster.BAR * pool[word] // pool["size"]) for word, sign in zip(STATES, _SIGNS, strict=True))
    return cluster.bar("".join(signs), words, pool["free"])


def _row(listed: Listed) -> tuple[str, ...]:
    one, word = listed.holding, state(listed)
    addresses = ", ".join(map(str, one.ips))
    if isinstance(one, Lost):
        return addresses, "-", "-", word, "-", one.kept
    if isinstance(one, Kept):
        since, until = map(moment, (one.released, one.until))
        until = "the next boot" if one.boot else until
        owner = one.sticky.rpartition(":")[0] or one.pod or one.mac or "-"
        return addresses, owner, "-", f"{word} until {until}", since, "-"
    since = moment(one.time)
    return addresses, one.owner.pod or "-", one.owner.key.ifname, word, since, one.owner.key.container_id[:_ID_DIGITS]


def _words(value: object, name: str = "") -> str:
    """The value of a member, as a date if it is a time."""
    if name in _MOMENTS and isinstance(value, int) and value:
        return moment(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
