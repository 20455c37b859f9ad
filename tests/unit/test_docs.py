"""The documentation says what is true: links lead somewhere, and examples parse as what they claim to be."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import Resource
from tidegate.api.model_access import ModelAccess

ROOT = Path(__file__).resolve().parents[2]
KINDS: dict[str, type[Resource]] = {
    kind.KIND: kind for kind in (Inference, ModelAccess, FeatureCompute, ComputePool, ComputeOverride)
}
FOREIGN = {"autoscaling/v2", "cert-manager.io/v1", "rbac.authorization.k8s.io/v1"}
"""API groups of examples that are not ours to check."""
LINK = re.compile(r"\[[^\]]+\]\((?!https?://|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN_BY = re.compile(r"\[`(test_\w+)`\]\(([^)]+\.py)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def documents() -> list[Path]:
    folders = ("docs", "changelog.d", "examples", "images", "charts")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *found])


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def manifests() -> Iterator[tuple[str, dict[str, object]]]:
    for path in documents():
        for block in BLOCK.findall(path.read_text()):
            for body in yaml.safe_load_all(block):
                if isinstance(body, dict) and "kind" in body and body["apiVersion"] not in FOREIGN:
                    yield name(path), body
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        for body in yaml.safe_load_all(path.read_text()):
            yield name(path), body


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(path.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", documents(), ids=name)
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


@pytest.mark.parametrize("path", documents(), ids=name)
def test_what_is_said_to_be_shown_by_a_test_is(path: Path) -> None:
    assert absent_tests(path) == []


def test_a_test_that_is_not_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_one() -> None: ...\n")
    page = tmp_path / "page.md"
    page.write_text("[`test_one`](test_a.py), [`test_two`](test_a.py)\n")
    assert absent_tests(page) == ["test_two"]


@pytest.mark.parametrize(
    ("where", "body"),
    [pytest.param(where, body, id=f"{where}-{body['kind']}") for where, body in manifests()],
)
def test_examples_are_what_they_claim_to_be(where: str, body: dict[str, object]) -> None:
    kind = KINDS[str(body["kind"])]
    assert kind.parse(body).metadata.name


def test_every_decision_is_listed() -> None:
    listed = (ROOT / "docs" / "adr" / "README.md").read_text()
    records = [path.name for path in (ROOT / "docs" / "adr").glob("0*.md")]
    assert records
    assert [record for record in records if f"({record})" not in listed] == []


def test_fragments_are_named_after_their_kind() -> None:
    kinds = {"added", "changed", "fixed", "removed", "security"}
    fragments = [path for path in (ROOT / "changelog.d").glob("*.md") if path.name != "README.md"]
    assert [path.name for path in fragments if path.name.split(".")[1] not in kinds] == []


def test_make_help_names_what_the_documents_use() -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join(path.read_text() for path in documents())
    used = set(re.findall(r"`make ([a-z][a-z0-9-]*)", text)) | set(re.findall(r"\$ make ([a-z0-9-]+)", text))
    assert used
    assert used <= targets
