"""A real Prometheus reads every query of every panel, and every variable's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.grafana import Asked, documents, every_query, prometheus_says
from fixtures.prometheus import RunningPrometheus


@pytest.fixture(scope="module")
def url(prometheus_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = RunningPrometheus(prometheus_binary, tmp_path_factory.mktemp("prometheus"))
    running.start()
    yield running.url
    running.stop()


@pytest.mark.parametrize("asked", every_query(), ids=lambda asked: asked.name)
def test_a_query_is_read_and_answered(asked: Asked, url: str) -> None:
    answer = prometheus_says(url, "query", query=asked.chosen())
    # Nothing is scraped: there is an answer, which is empty but for what is 0 until something happens.
    assert answer["resultType"] == "vector"


def test_what_is_no_query_is_refused(url: str) -> None:
    """So that the test above can fail."""
    with pytest.raises(ValueError, match="parse error"):
        prometheus_says(url, "query", query=Asked("", "", "sum(rate(up[$__rate_interval])").chosen())


def test_values_to_choose_from_are_asked_for_in_promql(url: str) -> None:
    asked = [
        variable["query"]["query"].removeprefix("query_result(")[:-1]
        for document in documents().values()
        for variable in document["templating"]["list"]
        if variable["type"] == "query"
    ]
    assert asked
    for query in set(asked):
        assert prometheus_says(url, "query", query=query)["result"] == []
