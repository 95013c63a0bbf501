"""``python -m cni``: the plugin without our IPAM inside; ipam.type is looked for on CNI_PATH."""

from cni.main import run
from cni.protocol.process import serve

if __name__ == "__main__":
    serve(lambda request: run(request, {}))
