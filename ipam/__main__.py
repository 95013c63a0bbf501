"""Answer one CNI request as an IPAM plugin: python -m ipam."""

from cni.protocol.process import serve
from ipam.main import run

if __name__ == "__main__":
    serve(run)
