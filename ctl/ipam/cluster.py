"""hpn ipam with --cluster, and its commands blocks, pods and release-node: the backend's blocks as tables and JSON."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.kernel import budget
from base.protocol.errors import InvalidConfig, IoFailure, RecordUnreadable
from base.protocol.spec import Json
from base.table import abridged
from ctl.command_line import as_document, word
from ctl.ipam import pods, release, retire
from ctl.screen import Table, moment, text
from ipam import sandboxes
from ipam.cluster import BLOCK, POOL, Document, Documents, node_blocks
from ipam.cluster.node_blocks import HEARTBEAT, LOST, RETURNING, NodeBlocks, OwnedBlock
from ipam.cluster.rules import counting
from ipam.cluster.rules.documents import SAID, Block, block_name
from ipam.cluster.rules.network import directory_in
from ipam.cluster.rules.overview import Overview, named, overviews, spans_in
from ipam.inventory import state
from ipam.ranges import Span, common, count
from ipam.stores import access

BAR: Final = 30  # signs
_SPANS: Final = 3  # spans of addresses that a row shows before "and N more"


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser) -> None:
    about = "this node's blocks of the pools that the cluster shares, and how full each is"
    command = commands.add_parser("blocks", help=about, description=about, parents=[common])
    command.add_argument("network", nargs="*", help="default: all")
    command.add_argument("--json", action="store_true", help="one JSON document")
    add_cluster(command, "the blocks of all nodes, from the cluster's backend")
    about = "which pod of the cluster has which address, on which node, and in which block"
    command = commands.add_parser("pods", help=about, description=about, parents=[common])
    command.add_argument(
        "network", nargs="*", help="a network or NetworkAttachmentDefinition (namespace/name); default: all"
    )
    command.add_argument("--json", action="store_true", help="one JSON document")
    _add_backend(command, needs_kubeconfig=True)
    about = "release all blocks of a node that is dead for good"
    command = commands.add_parser("release-node", help=about, description=about, parents=[common])
    command.add_argument("node", type=word, metavar="NAME", help="its name in hpn ipam show --cluster")
    command.add_argument("network", nargs="*", help="those of these networks only; default: of every network")
    command.add_argument("--force", action="store_true", help="also if the node counts as living")
    command.add_argument("--json", action="store_true", help="one JSON document")
    _add_backend(command)
    about = "remove all that the cluster's backend holds of a network without pods: its blocks and its pool layout"
    command = commands.add_parser("retire", help=about, description=about, parents=[common])
    command.add_argument("network", type=word, metavar="NETWORK", help="its name in hpn ipam show --cluster")
    command.add_argument("--force", action="store_true", help="without a look at the cluster's pods")
    command.add_argument("--json", action="store_true", help="one JSON document")
    _add_backend(command)


def add_cluster(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("--cluster", action="store_true", help=what)
    _add_backend(command)


def _add_backend(command: argparse.ArgumentParser, *, needs_kubeconfig: bool = False) -> None:
    command.add_argument("--backend", choices=("kubernetes", "etcd"), help="default: that of this node's networks")
    as_whom = "credential for the API server, instead of this node's; an administrator's may remove blocks of any node"
    if needs_kubeconfig:
        as_whom = "credential for the API server that may list all pods"
    command.add_argument("--kubeconfig", type=Path, metavar="FILE", required=needs_kubeconfig, help=as_whom)


def answer(options: argparse.Namespace) -> tuple[str, int]:
    """Return the command's output and exit status.  Raises CniError."""
    if options.command == "blocks" and not options.cluster:
        return _own_blocks(options)
    has = networks(options.data_dir)
    kinds = {one.backend for one in has.values()}
    # These two need it for the pods, also if the blocks are in an etcd.
    is_for_pods = options.command in ("pods", "retire")
    of_node = kinds.pop() if len(kinds) == 1 and (is_for_pods or not options.kubeconfig) else "kubernetes"
    kind = options.backend or of_node
    own = {name: one for name, one in has.items() if one.backend == kind}
    kubeconfig = None if is_for_pods and kind == "etcd" else options.kubeconfig
    budget.begin(is_patient=True)
    return of_backend(options, _opened(kind, kubeconfig), own)


def of_backend(options: argparse.Namespace, documents: Documents, own: Mapping[str, NodeBlocks]) -> tuple[str, int]:
    """Return the output and exit status of a command that uses the backend; ``own`` is this node's blocks there."""
    if options.command == "show":
        return _show(options, documents, own)
    commands = {
        "blocks": _all_blocks,
        "gc": _collect,
        "pods": pods.answer,
        "release-node": _release_node,
        "retire": retire.answer,
    }
    return commands[options.command](options, documents)


def _show(options: argparse.Namespace, documents: Documents, own: Mapping[str, NodeBlocks]) -> tuple[str, int]:
    found, blocks = _overviews(documents, options.network)
    lost = {one.network: _lost(own.get(one.network), blocks) for one in found}
    status = 1 if any(lost.values()) or any(one.wrong for one in found) else 0
    if options.json:
        of_all = [one.to_json() | {"lost": sorted(lost[one.network])} for one in found]
        return as_document({"backend": documents.identity(), "networks": of_all}), status
    lines = [part for one in found for part in pictured(one, lost[one.network])]
    return text(lines or ["no network has a pool in the cluster's backend"]), status


def _all_blocks(options: argparse.Namespace, documents: Documents) -> tuple[str, int]:
    found, _ = _overviews(documents, options.network)
    if options.json:
        blocks = [one.described(block) for one in found for block in one.blocks]
        return as_document({"backend": documents.identity(), "blocks": blocks}), 0
    return text([listed(found)]), 0


def _own_blocks(options: argparse.Namespace) -> tuple[str, int]:
    found = networks(options.data_dir, options.network)
    blocks = [one for name, has in found.items() for one in owned(options.data_dir, name, has)]
    status = 1 if any(one.block.state == LOST for one in blocks) else 0
    if options.json:
        return as_document({"dataDir": str(options.data_dir), "blocks": [one.to_json() for one in blocks]}), status
    nothing = f"no block of a shared pool in {options.data_dir}"
    return text([of_node(blocks) if blocks else nothing]), status


def _collect(options: argparse.Namespace, documents: Documents) -> tuple[str, int]:
    names = [one.network for one in _overviews(documents, options.network)[0]] if options.network else [""]
    done = [one for name in names for one in release.collect(documents, name, dry_run=options.dry_run)]
    status = 1 if any(one.what == release.FAILED for one in done) else 0
    if options.json:
        body = {"backend": documents.identity(), "dryRun": options.dry_run, "blocks": [one.to_json() for one in done]}
        return as_document(body), status
    lines = [one.words(dry_run=options.dry_run) for one in done]
    return text(lines or ["every node with blocks is alive"]), status


def _release_node(options: argparse.Namespace, documents: Documents) -> tuple[str, int]:
    found = release.blocks_of(documents, options.node, options.network)
    machine = documents.machine(options.node)
    lives = "" if options.force else release.why_not(machine, documents.now())
    done = release.release_left(documents, found, machine) if lives else release.release(documents, found)
    why = lives if not done else ""
    spared, waiting = len(found) - len(done), any(one.what in (release.SUSPECT, release.WAITING) for one in done)
    status = 1 if why or not found or waiting or any(one.what == release.FAILED for one in done) else 0
    if options.json:
        left = {"refused": why} if why else {"spared": spared} if spared else {}
        body = {"node": options.node, **left, "blocks": [one.to_json() for one in done]}
        return as_document(body), status
    if not found:
        of = f" of {', '.join(options.network)}" if options.network else ""
        return text(
            [f"node {options.node} has no block{of} in the cluster's backend; see: hpn ipam show --cluster"]
        ), status
    if why:
        return text([f"{why}; nothing is released; if you know that it is dead, add --force"]), status
    lines = [one.words(dry_run=False) for one in done]
    if waiting:
        lines.append(f"repeat the command {HEARTBEAT // 60} minutes after the suspicion, which a living node refutes")
    if spared:
        lines.append(f"{spared} blocks are kept, because the machine that has this name now may use them: {lives}")
    return text(lines), status


def _overviews(documents: Documents, names: Sequence[str]) -> tuple[list[Overview], list[Document]]:
    """Return the named networks, or all, and the documents of all blocks.  Raises IoFailure for an unknown name."""
    blocks = documents.listed(BLOCK)
    found = overviews(documents.listed(POOL), blocks)
    if not names:
        return found, list(blocks)
    wanted = {name: named(found, name) for name in names}
    if missing := [name for name, one in wanted.items() if one is None]:
        raise IoFailure(f"no network {', '.join(missing)} in the cluster's backend; see: hpn ipam show --cluster")
    return [one for one in wanted.values() if one], list(blocks)


def _lost(has: NodeBlocks | None, blocks: Sequence[Document]) -> Mapping[int, str]:
    """Return the blocks that this node's file lists and the backend does not, each with the reason."""
    if has is None:
        return {}
    there, lost = {document.name: document for document in blocks}, dict[int, str]()
    for block in has.blocks:
        document = there.get(block_name(has.network, block.index))
        if document is None and block.state != RETURNING:
            lost[block.index] = "no node owns it in the backend"
        elif document is not None and document.uid != block.uid:
            lost[block.index] = f"node {document.body.get('node')} owns it in the backend"
    return lost


def _opened(kind: str, kubeconfig: Path | None) -> Documents:
    # Imported here, because they load TLS.
    if kubeconfig is None:
        from ipam.cluster.backends import backend  # noqa: PLC0415

        return backend.opened(kind).documents
    if kind != "kubernetes":
        raise InvalidConfig(f"--kubeconfig has no effect with --backend {kind}; leave out one of them")
    from base.kubernetes import credentials  # noqa: PLC0415
    from ipam.cluster.backends import kubernetes  # noqa: PLC0415

    return kubernetes.Kubernetes(credentials.read(f"{kubeconfig.absolute()}", as_operator=True))


def pictured(overview: Overview, lost: Mapping[int, str]) -> Iterator[Table | str]:
    """Yield a bar, and a row for each node; ``lost`` is from ``_lost``."""
    layout = overview.layout
    if layout is None:
        yield f"{overview.network}: no pool layout, so the addresses of its blocks are unknown"
    else:
        subnets = ", ".join(layout.subnets) or "nothing"
        yield f"{overview.network}: blocks of {layout.size} host numbers in {subnets}"
    if overview.count is not None:
        yield f"  {_bar(overview.count, len(overview.blocks), len(overview.suspects))}"
    if overview.blocks:
        rows = [
            (f"  {node or '(none)'}", f"{len(blocks)}", _some(overview.shown(blocks)), _state(blocks))
            for node, blocks in overview.nodes.items()
        ]
        yield Table(("  NODE", "BLOCKS", "ADDRESSES", "STATE"), rows)
    yield from (f"  overlaps: {one}" for one in overview.overlaps)
    yield from (f"  lost: block {index} of this node: {why}" for index, why in lost.items())
    yield from (f"  wrong: {why}" for why in overview.wrong)
    yield ""


def listed(overviews: Sequence[Overview]) -> Table:
    rows = [
        (
            f"{one.network}.{b.index}",
            b.node or "-",
            _some(one.shown([b])),
            _state([b]),
            "yes" if b.taken else "-",
            b.whose or "-",
        )
        for one in overviews
        for b in one.blocks
    ]
    header = ("BLOCK", "NODE", "ADDRESSES", "STATE", "TAKEN", "WHOSE")
    named = any(b.whose for one in overviews for b in one.blocks)
    return Table(header, rows) if named else Table(header[:-1], [row[:-1] for row in rows])


def of_node(blocks: "Sequence[Own]") -> Table:
    rows = [
        (
            f"{one.network}.{one.block.index}",
            _some(one.spans),
            one.block.state,
            f"{one.held}",
            "-" if one.free is None else f"{one.free}",
            "yes" if one.block.taken else "-",
        )
        for one in blocks
    ]
    return Table(("BLOCK", "ADDRESSES", "STATE", "HELD", "FREE", "TAKEN"), rows)


def _bar(count: int, held: int, suspects: int) -> str:
    filled, doubted = (-(-BAR * number // max(count, 1)) for number in (held, suspects))
    words = [f"{held} held", *([f"{suspects} of them suspect"] if suspects else [])]
    return bar("#" * (filled - doubted) + "?" * doubted, words, count - held)


def bar(signs: str, words: Sequence[str], free: int) -> str:
    """Return a bar that begins with the signs, the words, and the number of free addresses or blocks."""
    number = f"{free}" if free < 10**9 else f"2^{free.bit_length() - 1}"
    return f"[{signs[:BAR]:.<{BAR}}] {', '.join(words)}, {number} free"


def _some(spans: Sequence[Span]) -> str:
    return abridged([*map(str, spans)], _SPANS) or "-"


def _state(blocks: Sequence[Block]) -> str:
    suspects = [block.suspect for block in blocks if block.suspect]
    if blocks and not blocks[0].node:
        return f"free since {moment(blocks[0].free)}" if len(blocks) == 1 else "free"
    if not suspects:
        return "held"
    some = f"{len(suspects)} of {len(blocks)} " if len(suspects) < len(blocks) else ""
    since = [when for when in suspects if when != SAID]
    return f"{some}suspect" + (f" since {moment(min(since))}" if since else "")


@dataclass(frozen=True)
class Own:
    """A block of this node.

    ``held``: its numbers that are not free, in the subnet with the most.  ``free``: its numbers that are free in every
    range; None before the network's first ADD.
    """

    network: str
    block: OwnedBlock
    spans: tuple[Span, ...]
    held: int
    free: int | None

    def to_json(self) -> Json:
        return {
            "network": self.network,
            "index": self.block.index,
            "state": self.block.state,
            "node": self.block.node,
            "taken": self.block.taken,
            "addresses": list(map(str, self.spans)),
            "held": self.held,
            "free": self.free,
        }


def networks(data_dir: Path, names: Sequence[str] = ()) -> dict[str, NodeBlocks]:
    """Return this node's blocks of each shared network, by name.  Raises IoFailure, RecordUnreadable."""
    try:
        found = [
            path.parent for some in ("*", directory_in("*")) for path in data_dir.glob(f"{some}/{node_blocks.FILE}")
        ]
        there = {str(path.relative_to(data_dir)): one for path in sorted(found) if (one := node_blocks.read(path))}
    except OSError as e:
        raise IoFailure(f"reading {e.filename or data_dir}: {e.strerror}; run as root") from e
    if missing := sorted(set(names) - set(there)):
        raise IoFailure(f"no blocks of network {', '.join(missing)} in {data_dir}; see: hpn ipam blocks")
    return {name: one for name, one in there.items() if not names or name in names}


def own_blocks(directory: Path) -> list[int] | None:
    """Return the network's blocks for new addresses; empty if it has none, None if unreadable.  Raises IoFailure."""
    try:
        has = node_blocks.read(directory)
    except RecordUnreadable:
        return None
    return list(has.giving) if has else []


def owned(data_dir: Path, network: str, has: NodeBlocks) -> Iterator[Own]:
    """Yield this node's blocks of the network, in order."""
    # Reserved numbers have a directory of their own, but their leases are with the network's.
    contents = access.open_in(data_dir, network.partition("/")[0], [], sandboxes.gone).contents()
    if contents.problem:
        raise RecordUnreadable(f"{network}: {contents.problem}")
    used = {ip for one in contents.listed if state(one) != "free" for ip in one.holding.ips}
    for block in has.blocks:
        numbered = Block(has.network, block.index, has.size, block.node, has.machine, "")
        spans = tuple(span for subnet in has.subnets for span in spans_in(subnet, [numbered]))
        held = max((sum(one in span for one in used) for span in spans), default=0)
        # Each free number serves one attachment with an address of every set.
        usable = [common(one_set.all_spans, spans) for one_set in counting.pool(has, contents.sets).sets]
        free = (count(here) - sum(any(one in span for span in here) for one in used) for here in usable)
        yield Own(network, block, spans, held, min(free, default=None))
