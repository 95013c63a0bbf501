"""gRPC over unix sockets, of HTTP/2 by h2: a server and a client that share one loop and one thread.

A peer is trusted with nothing but its user: whatever it sends or does not take, this process spends a bounded amount of
memory on it, and never waits for it.  The protocol: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""
