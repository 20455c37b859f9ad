"""The pages that people read, and the blocks in them: what they type, and what they apply."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(
    r"^(?:[ ]*<!-- (?P<mark>not run|part of|file): (?P<said>[^\n]+?) -->\n\n?)?"
    r"^(?P<indent>[ ]*)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_CHECKED = re.compile(r"^<!-- checked, not run: ([^\n]+) -->$", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    where: str
    """The page and the line."""
    language: str
    text: str
    not_run: str = ""
    """Why nobody runs or checks it, in the page's own words: <!-- not run: … -->."""
    part_of: str = ""
    """Of which kind this is a part: <!-- part of: Inference -->."""
    file: str = ""
    """As what a reader saves it: <!-- file: double.yaml -->."""


def pages() -> list[Path]:
    """All pages, those written from code among them."""
    folders = ("docs", "changelog.d", "examples", "images", "charts")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *found])


def name(path: Path) -> str:
    """Where it lies in the repository."""
    return str(path.relative_to(ROOT))


def blocks_of(text: str, page: str) -> Iterator[Block]:
    """The blocks of a page, those in lists too."""
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        mark, said = found["mark"], found["said"] or ""
        yield Block(
            f"{page}:{line}",
            found["language"],
            textwrap.dedent(found["text"]),
            not_run=said if mark == "not run" else "",
            part_of=said if mark == "part of" else "",
            file=said if mark == "file" else "",
        )


def why_not_typed(text: str) -> str:
    """Why no test types the commands of a page, in the page's own words: <!-- checked, not run: … -->."""
    found = _CHECKED.search(text)
    return found[1] if found else ""


def blocks(*languages: str) -> list[Block]:
    """All blocks in these languages, in the order of the pages."""
    return [
        block
        for path in pages()
        for block in blocks_of(path.read_text(), name(path))
        if block.language in languages
    ]


def inline(*, but: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    """What stands in backticks within sentences, with its page; not of the pages in `but`."""
    return [
        (name(path), code)
        for path in pages()
        if name(path) not in but
        for code in _INLINE.findall(_FENCE.sub("", path.read_text()))
    ]
