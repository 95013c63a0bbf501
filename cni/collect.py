"""What nobody wants any more: GC."""

import json
from dataclasses import replace

from cni import delegate, journal, spec, undo
from cni.delegate import Programs
from cni.errors import CniError
from cni.location import Location, location
from cni.spec import Config, Key, Request


def gc(request: Request, conf: Config, log: list[str], programs: Programs) -> None:
    """Undo every attachment of this network that the runtime does not list.

    Without a list it vouches for nothing, and only what is provably dead goes: an older boot's, and those
    whose namespace nobody is in.  An attachment whose ADD began or ended since GC began is left alone: the list
    cannot know it.  Raises the first failure, after having tried everything.
    """
    where, valid = location(conf), spec.valid_attachments(conf)
    failures, there = list[Exception](), journal.entries(where.state_dir, where.network)
    # The IPAM first, and it is told to spare what has a record: an ADD writes that before it has a lease.  What has
    # both goes below, by its own DEL.
    try:
        request.refuse_if_abandoned()
        delegate.ask_if_it_can(where.ipam, _sparing(request, conf, where), programs)
    except (CniError, OSError) as e:
        failures.append(e)
    for seen, version in there:
        if valid is not None and seen.key in valid:
            continue
        try:
            with journal.locked(where.state_dir, where.network, seen.key) as entry:
                request.refuse_if_abandoned()
                if entry.version() != version:
                    continue
                record = entry.load()
                if record is None:
                    entry.forget()
                elif valid is not None or undo.is_dead(record):
                    undo.raise_all(undo.attachment(entry, record, request, programs))
                    log.append(f"gc: removed {record.whose}")
        except (CniError, OSError) as e:
            failures.append(e)
    undo.raise_all(failures)


def _sparing(request: Request, conf: Config, where: Location) -> Request:
    """GC's request, with every attachment that has a record listed as valid."""

    def attached() -> list[Key]:
        return journal.keys(where.state_dir, where.network)

    keys = sorted(attached(), key=str)
    listed = [{"containerID": key.container_id, "ifname": key.ifname} for key in keys]
    lists = {
        name: conf[name] + [one for one in listed if one not in conf[name]]
        for name in spec.VALID_ATTACHMENTS
        if conf.get(name) is not None
    }
    return replace(request, stdin=json.dumps({**conf, **lists}).encode(), attached=attached)
