"""hpn node accepts random configuration files or refuses them with a message.

A failure names the file.
"""

import copy
import json
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import drawn
import yaml
from attack.mutation import CHANGES, VALUES, mutilated, objects
from support.node_files import ALL

from node import config
from node.config import BadFile
from node.config.values import why_refused
from node.model import Selector, Settings

MOST = 50_000
# Valid values from other files.
MEANT: Sequence[Any] = (
    *(
        "a",
        "rdma",
        "example.com",
        "netDevice",
        "accelerator",
        "vf",
        "master",
        "#",
        "a#",
        "a#0-99999999999",
        "A#1",
        "a#1,",
    ),
    *("0x8001", "management", "kubernetes.io", ["sf"], ["a#1-2", "a#3"], [{}], {"vdpaType": "vhost", "isRdma": True}),
    {"*": {"a": "b"}, "0000:3b:00.2": {}},
)


def documents(seed: int) -> Iterator[tuple[bytes, bool]]:
    """An endless stream of files, each with a flag for YAML."""
    dice = random.Random(seed)
    keys = sorted({key for file in ALL for one in objects(file) for key in one})
    while True:
        file = copy.deepcopy(dice.choice(ALL))
        for _ in range(dice.choice((0, 1, 1, 2, 3, 5))):
            within = dice.choice(list(objects(file)))
            if within and dice.random() < 0.5:
                key = dice.choice([*within, *keys])
                within[key.upper() if dice.random() < 0.1 else key] = copy.deepcopy(dice.choice([*MEANT, *VALUES]))
            else:
                dice.choice(CHANGES)(dice, within)
        is_yaml = dice.random() < 0.3
        data = written(file, dice, is_yaml=is_yaml)
        yield (mutilated(dice, data) if dice.random() < 0.2 else data), is_yaml


def written(file: dict[str, Any], dice: random.Random, *, is_yaml: bool) -> bytes:
    """Encode short files as YAML only: PyYAML is slow."""
    text = json.dumps(file)
    if is_yaml and len(text) < 20_000 and "\\ud800" not in text and dice.random() < 0.7:
        text = yaml.safe_dump(file, allow_unicode=True)
    return text.encode()


def test_mutilated_files() -> None:
    """Every error is a BadFile with one printable line; every accepted file describes resources that can be offered."""
    taken, count = 0, drawn.count(5_000, "mutilations")
    for number, (data, is_yaml) in enumerate(islice(documents(drawn.seed()), count)):
        said = f"number {number}, yaml {is_yaml}: {data[:2000]!r}"
        try:
            settings = config.settings(data, is_yaml=is_yaml, prefix="example.com")
        except BadFile as e:
            sentences = [e.msg, *getattr(e, "__notes__", ())]
        else:
            taken += 1
            sentences = [*settings.left_out, *settings.notes]
            assert can_be_offered(settings), said
        assert all(is_a_line(one) for one in sentences), (sentences, said)
    assert count / 10 < taken < count * 9 / 10, taken


def is_a_line(sentence: str) -> bool:
    return bool(sentence) and sentence.isprintable() and len(sentence) < 5_000


def can_be_offered(settings: Settings) -> bool:
    names = [one.full_name for one in settings.resources]
    return (
        bool(names)
        and len(set(names)) == len(names)
        and not any(map(why_refused, names))
        and all(0 <= one.count <= MOST and one.selectors for one in settings.resources)
        and all(isinstance(selector, Selector) for one in settings.resources for selector in one.selectors)
        and 0 <= settings.down_after <= 3600
        and 0 <= settings.up_after <= 3600
    )
