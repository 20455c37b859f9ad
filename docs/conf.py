"""Makes a site of these pages (`make docs`): they stay plain Markdown, and what only a site needs is added here.

The lists of links in README.md are the site's navigation, so that there is one index: each of its sections becomes
a toctree, in that order, followed by the pages of its folder that no list names.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from tidegate import __version__

project = "Tidegate"
version = release = __version__

copyright = "the authors of Tidegate"  # noqa: A001 - Sphinx asks for this name
extensions = ["myst_parser"]
root_doc = "README"
exclude_patterns = ["_static"]
nitpicky = True
myst_heading_anchors = 4
myst_links_external_new_tab = False

html_theme = "furo"
html_title = f"Tidegate {__version__}"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}

ELSEWHERE: Final = os.environ.get("TIDEGATE_DOCS_REPOSITORY", "").rstrip("/")
"""Where people read the repository's files, such as https://example.com/tidegate/blob/main; empty: links name them."""
CODES: Final = "reference/messages/"
"""Pages of one code each, too many for the navigation; reasons.md lists them."""
LINK: Final = re.compile(r"^- \[[^\]]+\]\(([\w/.-]+)\.md[)#]", re.MULTILINE)
SECTION: Final = re.compile(r"^(#{2,3}) (.+)$", re.MULTILINE)


def add_navigation(app: Sphinx, docname: str, content: list[str]) -> None:
    """Adds to a page what the site needs to lead to others."""
    if docname == root_doc:
        content[0] += "".join(_sections(app.srcdir, content[0]))
    elif docname.endswith("/README"):
        content[0] += _toctree(_pages(app.srcdir, docname.rpartition("/")[0], but=docname))
    elif docname.startswith(CODES):
        content[0] = f"---\norphan: true\n---\n{content[0]}"


def _sections(root: Path, text: str) -> Iterator[str]:
    sections = list(_listed(text))
    unlisted = {folder: _pages(root, folder, but=text) for _, pages in sections for folder in _folders(pages)}
    last = {folder: title for title, pages in sections for folder in _folders(pages)}
    for title, pages in sections:
        rest = [page for folder in _folders(pages) if last[folder] == title for page in unlisted[folder]]
        if pages:
            yield _toctree([*pages, *rest], caption=title)


def _listed(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each section, a part of one by both their names, and the pages that it lists."""
    _, *parts = SECTION.split(text)
    whole = ""
    for level, title, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        whole = title if level == "##" else whole
        yield (title if whole == title else f"{whole}: {title}"), LINK.findall(body)


def _folders(pages: list[str]) -> list[str]:
    """The folders of these pages; those with an index of their own list their pages themselves."""
    return sorted({page.rpartition("/")[0] for page in pages if not page.endswith("README")})


def _pages(root: Path, folder: str, *, but: str) -> list[str]:
    found = sorted(f"{folder}/{path.stem}" for path in (root / folder).glob("*.md"))
    return [f"/{page}" for page in found if page not in but]


def _toctree(entries: list[str], caption: str = "") -> str:
    named = f":caption: {caption}\n" if caption else ""
    return "\n\n```{toctree}\n:hidden:\n" + named + "\n" + "\n".join(entries) + "\n```\n"


class LinksOutOfTheSite(SphinxTransform):
    """Leads links to files of the repository that are no pages to where people read them, or says which they are."""

    default_priority = 50

    def apply(self, **_kwargs: object) -> None:
        """Replaces such links in one page; what is not there stays, for Sphinx to warn of."""
        for node in [
            *self.document.findall(addnodes.pending_xref),
            *self.document.findall(addnodes.download_reference),
        ]:
            if (path := self._outside(node)) is not None:
                where = path.relative_to(Path(self.env.srcdir).parent).as_posix()
                node.replace_self(_leading_to(where, node))

    def _outside(self, node: nodes.Element) -> Path | None:
        target = str(node.get("reftarget", "")).partition("#")[0]
        if not target:
            return None
        site = Path(self.env.srcdir)
        for base in ((site / self.env.docname).parent, site):
            for name in (target, f"{target}.md"):
                place = (base / name).resolve()
                if place.exists() and site not in place.parents and site.parent in place.parents:
                    return place
        return None


def _leading_to(where: str, node: nodes.Element) -> nodes.Element:
    children = [child.deepcopy() for child in node.children]
    if ELSEWHERE:
        return nodes.reference("", "", *children, refuri=f"{ELSEWHERE}/{where}", internal=False)
    return nodes.abbreviation("", "", *children, explanation=f"{where} in the repository")


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.connect("source-read", add_navigation)
    app.add_transform(LinksOutOfTheSite)
