"""Each dashboard is what Grafana's own types of a dashboard, its panels and its queries can hold: nothing is lost in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import prometheus, timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

from fixtures.grafana import documents

DOCUMENTS: Final = documents()
UNTYPED: Final = {"definition"}
"""How Grafana's list of variables shows a query of Prometheus: written by every Grafana, and in none of its types."""

register_default_plugins()


def read(document: Any) -> Dashboard:
    return Dashboard.from_json(document)


def differences(given: Any, kept: Any, place: str = "") -> Iterator[str]:
    """Where something of a document is not kept, or is another thing."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key in UNTYPED:
                continue
            if key not in kept:
                yield f"{place}.{key}"
            else:
                yield from differences(value, kept[key], f"{place}.{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, pair in enumerate(zip(given, kept, strict=True)):
            yield from differences(*pair, f"{place}[{index}]")
    elif given != kept:
        yield f"{place}: {given!r} became {kept!r}"


def lost(document: Any) -> list[str]:
    """What Grafana's types do not hold of it."""
    kept = json.loads(JSONEncoder(sort_keys=True).encode(read(document)))
    return list(differences(document, kept))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_grafana_knows_everything_that_a_dashboard_says(name: str) -> None:
    assert lost(DOCUMENTS[name]) == []


def test_panels_and_queries_are_read_as_those_of_their_plugins() -> None:
    """Else their options would be kept as whatever they are."""
    lines = [
        panel
        for document in DOCUMENTS.values()
        for panel in read(document).panels or ()
        if isinstance(panel, Panel) and panel.type_val == "timeseries"
    ]
    assert len(lines) > 50
    assert {type(panel.options) for panel in lines} == {timeseries.Options}
    assert {type(query) for panel in lines for query in panel.targets or ()} == {prometheus.Dataquery}
