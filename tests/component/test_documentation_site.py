"""`make docs`: the pages become a site without a warning, and what would be wrong there is warned of."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def built(source: Path, out: Path, builder: str) -> subprocess.CompletedProcess[str]:
    """Sphinx with the flags of `make docs`, over any folder."""
    [flags] = re.findall(r"sphinx-build (.+) -d \S+ docs build/docs$", (ROOT / "Makefile").read_text(), re.M)
    command = [sys.executable, "-m", "sphinx", *flags.split(), "-b", builder, "-c", DOCS, source, out]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A site of three pages, to be spoiled."""
    site = tmp_path / "docs"
    (site / "how-to").mkdir(parents=True)
    (site / "README.md").write_text("# Pages\n\n## How-to\n\n### People\n\n- [One](how-to/one.md): first.\n")
    (site / "how-to" / "one.md").write_text(
        "# One\n\nSee [two](two.md#part), and the [notes](../../notes.txt).\n"
    )
    (site / "how-to" / "two.md").write_text("# Two\n\n## Part\n\n[Code](../../code) is elsewhere.\n")
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "code").mkdir()
    return site


def test_the_pages_become_a_site_without_a_warning(tmp_path: Path) -> None:
    done = built(DOCS, tmp_path / "site", "dummy")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_index_is_the_navigation_and_links_out_of_the_site_name_their_file(
    small: Path, tmp_path: Path
) -> None:
    done = built(small, tmp_path / "site", "html")
    assert (done.returncode, done.stderr) == (0, "")

    index = (tmp_path / "site" / "README.html").read_text()
    navigation = index.partition("sidebar-tree")[2]
    assert "How-to: People" in navigation
    assert navigation.index('href="how-to/one.html"') < navigation.index('href="how-to/two.html"')
    page = (tmp_path / "site" / "how-to" / "one.html").read_text()
    assert 'href="two.html#part"' in page
    assert 'title="notes.txt in the repository"' in page
    assert 'title="code in the repository"' in (tmp_path / "site" / "how-to" / "two.html").read_text()


def test_each_kind_of_mistake_is_warned_of(small: Path, tmp_path: Path) -> None:
    mistakes = {
        "[gone](three.md)": "three.md",
        "[gone](../../gone.py)": "gone.py",
        "[no such part](two.md#parts)": "parts",
        "```{nonsense}\n```": "nonsense",
        "- [out of order](#nowhere)": "nowhere",
    }
    with (small / "how-to" / "one.md").open("a") as page:
        page.write("\n" + "\n\n".join(mistakes) + "\n")
    done = built(small, tmp_path / "site", "dummy")
    assert done.returncode != 0
    warnings = [line for line in done.stderr.splitlines() if "one.md" in line]
    assert [said for said in mistakes.values() if not any(said in line for line in warnings)] == []
    assert len(warnings) == len(mistakes)
