"""Answer one CNI request as an IPAM plugin: python -m ipam."""

from base.protocol.dispatch import serve
from ipam.main import run

if __name__ == "__main__":
    serve(run)
