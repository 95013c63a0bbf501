"""The devices that kubelet allocated to a pod: ``v1.PodResourcesLister/List`` on its socket.

One gRPC call by hand: no gRPC library starts as fast as the rest of this plugin.  It reads PodResources of
podresources/v1/api.proto from the answer and decodes no header, because an answer with a message has succeeded.

https://grpc.github.io/grpc/core/md_doc__p_r_o_t_o_c_o_l-_h_t_t_p2.html, RFC 9113
"""

import socket
import struct
from collections import defaultdict
from collections.abc import Iterator

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 7, 8
_END_STREAM, _END_HEADERS, _PADDED = 1, 4, 8
_INITIAL_WINDOW_SIZE = 4
_WIDEST = (1 << 31) - 1


class KubeletFailed(Exception):
    """Kubelet did not answer with a list."""


def devices(namespace: str, pod: str, path: str = SOCKET) -> dict[str, list[str]]:
    """The devices of all containers of a pod, by resource, each list sorted as Multus sorts it.

    Raises KubeletFailed, OSError.
    """
    found = defaultdict[str, list[str]](list)
    for of_pod in _of(_list(path), 1):
        if (_text(of_pod, 1), _text(of_pod, 2)) != (pod, namespace):
            continue
        for container in _of(of_pod, 3):
            for given in _of(container, 2):
                found[_text(given, 1)] += [device.decode() for device in _of(given, 2)]
    return {resource: sorted(ids) for resource, ids in found.items()}


def _list(path: str) -> bytes:
    """The message ListPodResourcesResponse."""
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/v1.PodResourcesLister/List",
        b":authority": b"localhost",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
    }
    # Each header is a literal without indexing (RFC 7541, 6.2.2).
    block = b"".join(b"\0" + bytes([len(k)]) + k + bytes([len(v)]) + v for k, v in headers.items())
    windows = _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, _WIDEST))
    windows += _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _WIDEST - 0xFFFF))
    with socket.socket(socket.AF_UNIX) as kubelet:
        # time: multus' own bound
        kubelet.settimeout(10)
        kubelet.connect(path)
        # The request is an empty message: not compressed, and no byte long.
        request = _frame(_HEADERS, _END_HEADERS, 1, block) + _frame(_DATA, _END_STREAM, 1, bytes(5))
        kubelet.sendall(_PREFACE + windows + request)
        body = b"".join(_body(kubelet))
    if len(body) < 5 or body[0] or len(body) != 5 + int.from_bytes(body[1:5], "big"):
        raise KubeletFailed(f"kubelet gave no list of pods and devices on {path}")
    return body[5:]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _body(kubelet: socket.socket) -> Iterator[bytes]:
    """The payloads of the answer's DATA frames."""
    with kubelet.makefile("rb") as stream:
        while head := stream.read(9):
            kind, flags = head[3], head[4]
            payload = stream.read(int.from_bytes(head[:3], "big"))
            if kind in (_RESET, _GOAWAY) or (kind == _DATA and flags & _PADDED):
                raise KubeletFailed(f"kubelet sent a frame of type {kind}, flags {flags}: {payload!r}")
            if kind == _DATA:
                yield payload
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                return


def _of(message: bytes, number: int) -> Iterator[bytes]:
    """The fields of that number in a protobuf message that are strings or messages."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == 0:
            _, at = _varint(message, at)
        elif tag & 7 == 2:
            length, at = _varint(message, at)
            if tag >> 3 == number:
                yield message[at : at + length]
            at += length
        else:
            at += {1: 8, 5: 4}[tag & 7]


def _text(message: bytes, number: int) -> str:
    return next(_of(message, number), b"").decode()


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (message[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if message[at - 1] < 0x80:
            return value, at
