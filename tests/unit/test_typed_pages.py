"""Which lines of the pages are typed on a whole cluster (tests/e2e/test_documented_pages.py), and what counts as broken."""

from __future__ import annotations

import re

import pytest

from documented.pages import ROOT
from documented.typed import BEGINNINGS, PAGES, every, problem, typed


def test_most_lines_are_typed_and_each_runbook_has_one() -> None:
    lines = [why_not for _, why_not in every()]
    assert lines.count("") > len(lines) / 2
    runbooks = {str(path.relative_to(ROOT)) for path in (ROOT / "docs/runbooks").glob("*.md")}
    without = {
        "docs/runbooks/README.md",
        "docs/runbooks/gateway-secret-unusable.md",
    }  # openssl reads a certificate
    assert runbooks - set(typed()) == without


def test_no_reason_outlives_what_it_is_for() -> None:
    pages = {line.page for line, _ in every()}
    assert set(PAGES) <= pages
    texts = [line.text for line, _ in every()]
    assert [begins for begins in BEGINNINGS if not any(text.startswith(begins) for text in texts)] == []
    named = re.findall(r"tests/\S+\.py", " ".join([*PAGES.values(), *BEGINNINGS.values()]))
    assert [each for each in named if not (ROOT / each).is_file()] == []


@pytest.mark.parametrize(
    ("text", "code", "said", "complained", "broken"),
    [
        ("tidegate why ctr -n ads", 0, "Inference ads/ctr", "", ""),
        ("tidegate why ctr -n ads", 1, "", "tidegate: there is no Inference ctr", "exit status 1"),
        ("tidegate why ctr -n ads", 1, "Inference ads/ctr", "", "exit status 1"),
        ("tidegate doctor", 1, "1 error in 17 looked at", "", ""),
        ("tidegate doctor", 1, "", "tidegate: connection refused", "connection refused"),
        ("tidegate doctor", 2, "", "no such option", "exit status 2"),
        ("tidegate doctor", 0, "all is well", "Traceback (most recent call last)\nKeyError", "KeyError"),
        ("tidegate top pools", 0, "", "", "prints nothing"),
        ("kubectl get pods", 0, "", "No resources found", ""),
        ("kubectl get inf ctr -o jsonpath='{.status.failure}'", 0, "", "", ""),
        ("kubectl get inf ctr -o jsonpath='{.status.failure}'", 1, "", "NotFound", "NotFound"),
        ("kubectl logs deployment/a | grep solver", 1, "", "", ""),
        ("kubectl logs deployment/b | grep solver", 1, "", 'deployments "b" not found', "not found"),
    ],
)
def test_what_a_reader_would_take_for_broken(
    text: str, code: int, said: str, complained: str, broken: str
) -> None:
    found = problem(text, code, said, complained)
    assert broken in found
    assert bool(broken) == bool(found)
