"""hpn ipam with --cluster, and its commands blocks and release-node: what the cluster's store has, for people."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from base.protocol.errors import InvalidConfig, IoFailure
from ctl.command_line import as_document, word
from ctl.screen import text
from ipam.cluster import BLOCK, GRID, Document, Documents

if TYPE_CHECKING:
    from ipam.cluster.rules.overview import Overview
    from ipam.cluster.state.node_blocks import NodeBlocks

Networks = Mapping[str, "NodeBlocks"]


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser) -> None:
    """Add the two commands with their options."""
    about = "this node's blocks of the pools that the cluster shares, and how full each is"
    command = commands.add_parser("blocks", help=about, description=about, parents=[common])
    command.add_argument("network", nargs="*", help="default: all")
    command.add_argument("--json", action="store_true", help="one JSON document")
    add_cluster(command, "those of all nodes, as the cluster's store has them")
    about = "give back all blocks of a node that is dead for good"
    command = commands.add_parser("release-node", help=about, description=about, parents=[common])
    command.add_argument("node", type=word, metavar="NAME", help="as hpn ipam show --cluster names it")
    command.add_argument("network", nargs="*", help="those of these networks only; default: of every network")
    command.add_argument("--force", action="store_true", help="also if the node counts as living")
    command.add_argument("--json", action="store_true", help="one JSON document")
    _add_store(command)


def add_cluster(command: argparse.ArgumentParser, what: str) -> None:
    """Add --cluster, and which store that is."""
    command.add_argument("--cluster", action="store_true", help=what)
    _add_store(command)


def _add_store(command: argparse.ArgumentParser) -> None:
    command.add_argument("--store", choices=("kubernetes", "etcd"), help="default: that of this node's networks")
    as_whom = "ask the API server as this says, and not as this node; an administrator may remove what other nodes have"
    command.add_argument("--kubeconfig", type=Path, metavar="FILE", help=as_whom)


def answer(options: argparse.Namespace) -> tuple[str, int]:
    """What the command prints, and its exit status.  Raises CniError."""
    from ctl.cluster import own  # noqa: PLC0415

    if options.command == "blocks" and not options.cluster:
        return _own_blocks(options)
    has = own.networks(options.data_dir)
    kinds = {one.store for one in has.values()}
    of_node = kinds.pop() if len(kinds) == 1 and not options.kubeconfig else "kubernetes"
    kind = options.store or of_node
    documents = _opened(kind, options.kubeconfig)
    return ANSWERS[options.command](options, documents, {n: one for n, one in has.items() if one.store == kind})


def _show(options: argparse.Namespace, documents: Documents, own: Networks) -> tuple[str, int]:
    from ctl.cluster import drawing  # noqa: PLC0415

    found, blocks = _surveyed(documents, options.network)
    lost = {one.network: _lost(own.get(one.network), blocks) for one in found}
    status = 1 if any(lost.values()) or any(one.wrong for one in found) else 0
    if options.json:
        of_all = [one.to_json() | {"lost": sorted(lost[one.network])} for one in found]
        return as_document({"store": documents.identity(), "networks": of_all}), status
    lines = [part for one in found for part in drawing.pictured(one, lost[one.network])]
    return text(lines or ["no network has a pool in the cluster's store"]), status


def _all_blocks(options: argparse.Namespace, documents: Documents, _own: Networks) -> tuple[str, int]:
    from ctl.cluster import drawing  # noqa: PLC0415

    found, _ = _surveyed(documents, options.network)
    if options.json:
        listed = [one.described(block) for one in found for block in one.blocks]
        return as_document({"store": documents.identity(), "blocks": listed}), 0
    return text([drawing.listed(found)]), 0


def _own_blocks(options: argparse.Namespace) -> tuple[str, int]:
    from ctl.cluster import drawing, own  # noqa: PLC0415

    networks = own.networks(options.data_dir, options.network)
    of_node = [one for name, has in networks.items() for one in own.owned(options.data_dir, name, has)]
    status = 1 if any(one.block.state == "lost" for one in of_node) else 0
    if options.json:
        return as_document({"dataDir": str(options.data_dir), "blocks": [one.to_json() for one in of_node]}), status
    nothing = f"this node has no block of a shared pool, says {options.data_dir}"
    return text([drawing.of_node(of_node) if of_node else nothing]), status


def _collect(options: argparse.Namespace, documents: Documents, _own: Networks) -> tuple[str, int]:
    from ctl.cluster import release  # noqa: PLC0415

    names = [one.network for one in _surveyed(documents, options.network)[0]] if options.network else [""]
    done = [one for name in names for one in release.collect(documents, name, dry_run=options.dry_run)]
    status = 1 if any(one.what == release.FAILED for one in done) else 0
    if options.json:
        body = {"store": documents.identity(), "dryRun": options.dry_run, "blocks": [one.to_json() for one in done]}
        return as_document(body), status
    lines = [one.words(dry_run=options.dry_run) for one in done]
    return text(lines or ["every node that has blocks lives"]), status


def _release_node(options: argparse.Namespace, documents: Documents, _own: Networks) -> tuple[str, int]:
    from ctl.cluster import release  # noqa: PLC0415

    found = release.blocks_of(documents, options.node, options.network)
    machine = documents.machine(options.node)
    lives = "" if options.force else release.why_not(machine, documents.now())
    given_up = release.left_by_others(found, machine, documents.now()) if lives else found
    why = lives if not given_up else ""
    done = release.release(documents, given_up)
    spared = len(found) - len(given_up)
    status = 1 if why or not found or any(one.what == release.FAILED for one in done) else 0
    if options.json:
        left = {"refused": why} if why else {"spared": spared} if spared else {}
        body = {"node": options.node, **left, "blocks": [one.to_json() for one in done]}
        return as_document(body), status
    if not found:
        of = f" of {', '.join(options.network)}" if options.network else ""
        return text(
            [f"node {options.node} has no block{of} in the cluster's store; see: hpn ipam show --cluster"]
        ), status
    if why:
        return text([f"{why}; nothing is released; if you know that it is dead, add --force"]), status
    lines = [one.words(dry_run=False) for one in done]
    if spared:
        lines.append(f"{spared} blocks are kept, because the machine that has this name now may use them: {lives}")
    return text(lines), status


def _surveyed(documents: Documents, names: Sequence[str]) -> "tuple[list[Overview], list[Document]]":
    """The networks of these names, without names all, and the documents of blocks.  Raises IoFailure for a name that
    nobody has."""
    from ipam.cluster.rules.overview import named, overviews  # noqa: PLC0415

    blocks = documents.listed(BLOCK)
    found = overviews(documents.listed(GRID), blocks)
    if not names:
        return found, list(blocks)
    wanted = {name: named(found, name) for name in names}
    if missing := [name for name, one in wanted.items() if one is None]:
        raise IoFailure(f"no network {', '.join(missing)} in the cluster's store; see: hpn ipam show --cluster")
    return [one for one in wanted.values() if one], list(blocks)


def _lost(has: "NodeBlocks | None", blocks: Sequence[Document]) -> Mapping[int, str]:
    """The blocks that this node has in its file and not in the store, each with why."""
    if has is None:
        return {}
    from ipam.cluster.rules.documents import block_name  # noqa: PLC0415
    from ipam.cluster.state.node_blocks import RETURNING  # noqa: PLC0415

    there, lost = {document.name: document for document in blocks}, dict[int, str]()
    for block in has.blocks:
        document = there.get(block_name(has.network, block.index))
        if document is None and block.state != RETURNING:
            lost[block.index] = "nobody has it in the store"
        elif document is not None and document.uid != block.uid:
            lost[block.index] = f"node {document.body.get('node')} has it in the store"
    return lost


def _opened(kind: str, kubeconfig: Path | None) -> Documents:
    # Imported here: they speak to a server.
    if kubeconfig is None:
        from ipam.cluster.backends import backend  # noqa: PLC0415

        return backend.opened(kind).documents
    if kind != "kubernetes":
        raise InvalidConfig(f"--kubeconfig is of no use for --store {kind}; leave out one of them")
    from ipam.cluster.backends.kubernetes import opened  # noqa: PLC0415

    return opened({"kubeconfig": f"{kubeconfig.absolute()}"}, "")[0]


# Of each command what answers it: its options, the store that all nodes share, and what this node has of that.
ANSWERS: Final[Mapping[str, Callable[[argparse.Namespace, Documents, Networks], tuple[str, int]]]] = {
    "show": _show,
    "blocks": _all_blocks,
    "gc": _collect,
    "release-node": _release_node,
}
