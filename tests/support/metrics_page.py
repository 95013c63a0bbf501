"""Read the page of metrics with the parser of prometheus_client."""

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from node.metrics import page

Samples = dict[tuple[str, ...], float]


def samples(text: str) -> Samples:
    """Return each sample by its name and label values, in the order of the label names."""
    found = Samples()
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            key = one.name, *(value for _, value in sorted(one.labels.items()))
            assert key not in found
            found[key] = one.value
    return found


def made(*families: Iterable[Metric]) -> Samples:
    text, sentences = page.make([one for more in families for one in more], {}, {})
    assert sentences == ()
    return samples(text.decode())
