"""Reads a page of the dashboard as a browser would, and notes what the page's policy forbids."""

from __future__ import annotations

from html.parser import HTMLParser

CSRF = 'name="csrf" value="'


class Page(HTMLParser):
    """What of a page a browser would refuse under its policy, or run though nobody meant it to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.elements = 0
        self.ids: list[str] = []
        self.headings: list[int] = []
        self.texts: list[str] = []
        self._raw = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements += 1
        given = dict(attrs)
        self._raw = tag if tag in {"script", "style"} else ""
        if tag == "style" or (tag == "script" and not (given.get("src") or "").startswith("/static/")):
            self.found.append(f"inline {tag}")
        for name, value in attrs:
            if name == "style" or name.startswith(("on", "hx-on")) or "javascript:" in (value or ""):
                self.found.append(f"{tag} {name}={value}")
            if name in {"hx-vals", "hx-headers"} or (name == "src" and not (value or "").startswith("/")):
                self.found.append(f"{tag} {name}={value}")
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag in {"h1", "h2", "h3", "h4"}:
            self.headings.append(int(tag[1]))

    def handle_data(self, data: str) -> None:
        if self._raw and data.strip():
            self.found.append(f"inline {self._raw}: {data[:40]}")
        self.texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._raw = ""
