"""The guards of the program, each with what takes it out, for tests/guards.py: a file for each of its floors.

A guard's old text occurs once in its file; where the code has moved on, tests/unit/test_guards.py says so.
"""

from guarded import (
    agent,
    attachments,
    cluster,
    cluster_add,
    cluster_commands,
    cluster_sticky,
    cluster_stores,
    commands,
    devices,
    doctor,
    index,
    installation,
    ipam,
    kernel,
    kinds,
    launcher,
    logs,
    metrics,
    needed,
    node,
    node_grpc,
    parts,
    permitted,
    protocol,
    provision,
    shown,
    state,
    store,
    undo,
)
from guarded.form import Guard

__all__ = ["GUARDS", "Guard"]

GUARDS = [
    guard
    for floor in (
        commands,
        undo,
        attachments,
        cluster,
        kinds,
        devices,
        needed,
        parts,
        state,
        permitted,
        logs,
        kernel,
        protocol,
        agent,
        ipam,
        cluster_add,
        store,
        index,
        node,
        metrics,
        node_grpc,
        installation,
        provision,
        shown,
        doctor,
        cluster_commands,
        cluster_sticky,
        cluster_stores,
        launcher,
    )
    for guard in floor.GUARDS
]
