"""``python -m cni``: the plugin without our IPAM inside; ipam.type is looked for on CNI_PATH."""

from base.protocol.dispatch import serve
from cni.main import run

if __name__ == "__main__":
    serve(lambda request: run(request, {}))
