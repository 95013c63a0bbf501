"""``python -m cni``: the plugin without our IPAM; it finds the program of ipam.type on CNI_PATH."""

from base.protocol.dispatch import serve
from cni.main import run

if __name__ == "__main__":
    serve(lambda request: run(request, {}))
