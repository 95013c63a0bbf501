"""Several attachments of one command, those of a pod's claims (cni/chain.py) or of its rails (cni/rails.py): they are
one transaction (cni/transaction.py), with a chain on disk around it (base/state/chains.py).
"""

from base.kernel import rtnl
from base.protocol.errors import CniError, InterfaceExists, NotAvailable, as_cni_error
from base.protocol.location import Location
from base.protocol.result import Result
from base.protocol.spec import Request
from base.state import claims, durable, journal
from base.state import pod as pods
from base.state.chains import Chain, Member
from base.state.pod import Pod
from cni import collect, kinds, transaction
from cni.transaction import Asked
from cni.undo import Undo, after


def attach(whole: Chain, members: tuple[Member, ...], asked: list[Asked], undo: Undo) -> list[Result]:
    """Attach, with the chain on disk before.  A chain whose attachments were all undone is removed."""
    whole.save(members)
    try:
        results = transaction.attach(asked, undo)
    except BaseException as failure:
        if not any(entry.version() for entry in whole.own(members)):
            with after(failure, "and could not remove the chain, DEL has to"):
                whole.forget()
        raise
    whole.note_added()
    collect.a_few(asked[0].wanted.where, undo)
    return results


def settle(whole: Chain, undo: Undo, what: str) -> None:
    """Undo what an earlier ADD of the same key left.  Raises InterfaceExists if all its attachments still exist, and
    its caller got the reply; ``what`` names them in the message."""
    members = whole.load()
    if not members:
        return
    request = undo.request
    with pods.open_pod(request) as pod:
        if not request.was_taken and all(_stands(one, pod, request) for one in members):
            raise InterfaceExists(f"{request.key.of('', whole.network)}: {what} attached already; send DEL first")
    undo.members_of_chain(whole, members)
    undo.log.append(f"undid an earlier ADD of {request.key.of('', whole.network)}")


def refuse_standing(members: tuple[Member, ...], request: Request, remedy: str) -> None:
    """Raise InterfaceExists if one of the attachments exists, before a chain names it: another ADD made it."""
    if any(one.entry(request.key.container_id).version() for one in members):
        with pods.open_pod(request) as pod:
            for one in members:
                if _stands(one, pod, request):
                    raise InterfaceExists(f"{name(one)}: attached already; {remedy}")


def _stands(member: Member, pod: Pod, request: Request) -> bool:
    entry = member.entry(request.key.container_id)
    record = journal.peek(entry.state_dir, entry.network, entry.key)
    if not record or not record.complete or not record.of_this_boot or record.identity != pod.identity:
        return False
    return kinds.named(record.kind).stands(record.link, pod, record.key.ifname)


def refuse_if_not_ready(where: Location) -> None:
    """Raise NotAvailable if the journal cannot be written, or the kernel is too old."""
    try:
        durable.probe(where.state_dir / "locks")
        with rtnl.open_in() as host:
            transaction.refuse_old_kernel(host)
    except (CniError, OSError) as e:
        raise NotAvailable(f"no ADD can be served: {as_cni_error(e).msg}") from e


def name(member: Member) -> str:
    """The member's name in a message for people, with that of its claim."""
    if not member.claim:
        return member.ifname
    found = claims.of_record(member.claim)
    title = f"{found[0].title}, request {found[1].request}" if found else f"claim {member.claim.partition('/')[0]}"
    return f"{member.ifname} of {title}"
