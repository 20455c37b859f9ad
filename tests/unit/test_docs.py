"""The documentation says what is true: links lead somewhere, and examples parse as what they claim to be."""

import re
from pathlib import Path
from typing import Any

import pytest

from documented.manifests import OURS, Part, of_block, ours, parts, unclaimed
from documented.pages import ROOT, blocks_of, name, pages
from tidegate.errors import InvalidSpecError

LINK = re.compile(r"\[[^\]]+\]\((?!https?://|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
SHOWN_BY = re.compile(r"\[`(test_\w+)`\]\(([^)]+\.py)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(path.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", pages(), ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in LINK.findall(path.read_text()):
        place = (path.parent / target).resolve() if target else path
        assert place.exists(), f"{name(path)} links to {target}, which is not there"
        if anchor and place.suffix == ".md":
            assert anchor[1:] in anchors(place), f"{name(path)} links to {target}{anchor}"


def absent_tests(path: Path) -> list[str]:
    """Tests that a page says show something, and that are not in the file that it names."""
    shown = SHOWN_BY.findall(path.read_text())
    return [test for test, file in shown if f"def {test}(" not in (path.parent / file).read_text()]


@pytest.mark.parametrize("path", pages(), ids=name)
def test_what_is_said_to_be_shown_by_a_test_is(path: Path) -> None:
    assert absent_tests(path) == []


def test_a_test_that_is_not_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_one() -> None: ...\n")
    page = tmp_path / "page.md"
    page.write_text("[`test_one`](test_a.py), [`test_two`](test_a.py)\n")
    assert absent_tests(page) == ["test_two"]


@pytest.mark.parametrize(
    ("where", "body"),
    [pytest.param(where, body, id=f"{where}-{body['kind']}") for where, body in ours()],
)
def test_examples_are_what_they_claim_to_be(where: str, body: dict[str, Any]) -> None:
    assert OURS[body["kind"]].parse(body).metadata.name, where


@pytest.mark.parametrize("part", parts(), ids=lambda part: part.where)
def test_a_part_makes_a_whole_that_is_valid(part: Part) -> None:
    assert part.problem() == ""


def test_every_example_says_what_it_is() -> None:
    assert unclaimed() == []


@pytest.mark.parametrize(
    ("field", "said"),
    [("reqlicas: 2", "reqlicas"), ("replicas: -1", "replicas"), ("tier: realtme", "tier")],
)
def test_a_wrong_field_is_found(field: str, said: str) -> None:
    whole = f"apiVersion: tidegate.io/v1alpha1\nkind: Inference\nmetadata: {{name: a}}\nspec:\n  {field}\n"
    (body,) = of_block(next(blocks_of(f"```yaml\n{whole}```\n", "page")))
    with pytest.raises(InvalidSpecError, match=said):
        OURS["Inference"].parse(
            {**body, "spec": {"model": {"uri": "s3://models/a", "version": "1"}, **body["spec"]}}
        )
    text = f"<!-- part of: Inference -->\n```yaml\nspec:\n  {field}\n```\n"
    (part,) = parts(blocks_of(text, "page"))
    assert said in part.problem()


def test_every_decision_is_listed() -> None:
    listed = (ROOT / "docs" / "adr" / "README.md").read_text()
    records = [path.name for path in (ROOT / "docs" / "adr").glob("0*.md")]
    assert records
    assert [record for record in records if f"({record})" not in listed] == []


def test_fragments_are_named_after_their_kind() -> None:
    kinds = {"added", "changed", "fixed", "removed", "security"}
    fragments = [path for path in (ROOT / "changelog.d").glob("*.md") if path.name != "README.md"]
    assert [path.name for path in fragments if path.name.split(".")[1] not in kinds] == []
