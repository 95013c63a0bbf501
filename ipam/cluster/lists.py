"""Lists of objects of any kind in an API server.  Nothing is changed."""

from collections.abc import Iterator
from urllib.parse import quote

from cni.protocol.errors import StoreRefused
from cni.protocol.spec import Json
from ipam.cluster.http import Http

_PAGE = 500


def objects(server: Http, path: str, unknown: str = "") -> Iterator[Json]:
    """The objects of a list, page by page (kubernetes.io, "Kubernetes API Concepts", "Retrieving large results sets in
    chunks").

    ``unknown``: what is refused where the API server does not know the kind; empty: there are none then.
    Raises Unreachable, StoreRefused.
    """
    what, follow = f"{server.server} does not list {path.rpartition('/')[2]}", ""
    while True:
        answer = server.ask("GET", f"{path}?limit={_PAGE}{follow}", is_safe=True)
        if answer.status == 404 and not unknown:
            return
        if answer.status != 200:
            raise StoreRefused(f"{what}: {unknown if answer.status == 404 else answer.said}")
        page = answer.json()
        items, about = page.get("items"), page.get("metadata")
        if not isinstance(items, list | None) or not isinstance(about, dict | None):  # guard: no-list (items)
            raise StoreRefused(f"{what}: its answer is no list of objects; correct the server in the kubeconfig")
        yield from (one for one in items or () if isinstance(one, dict))
        before, more = follow, (about or {}).get("continue")
        if not more:
            return
        follow = f"&continue={quote(str(more), safe='')}"
        if follow == before:  # it would be asked without end  # guard: without-end
            raise StoreRefused(f"{what}: it names the same next page again; correct the server in the kubeconfig")
