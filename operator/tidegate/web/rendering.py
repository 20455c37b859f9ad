"""Pages from templates: what each of them is given besides its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

import yaml
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from tidegate import __version__
from tidegate.api.conditions import timestamp
from tidegate.api.messages.catalogue import by_name
from tidegate.web.visitor import Visitor

_PACKAGE: Final = "tidegate.web"
_MESSAGES: Final = by_name()


def shown(visitor: Visitor, template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """A page for somebody who is known."""
    common = {
        "user": visitor.identity.user,
        "csrf": visitor.csrf,
        "mode": visitor.parts.door.mode.value,
        "since": visitor.since,
    }
    return HTMLResponse(render(template, {**common, **context}), status)


def shown_to_anybody(template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """A page for somebody who is not known yet."""
    return HTMLResponse(render(template, {"user": "", "csrf": "", "mode": "", **context}), status)


def render(template: str, context: Mapping[str, Any]) -> str:
    """The text of a page. A template that names what it is not given fails."""
    return _pages().get_template(template).render(version=__version__, **context)


@cache
def asset_hash(name: str) -> str:
    """Of a file below static: part of its address, so that browsers keep it until it changes."""
    content = files(_PACKAGE).joinpath("static", *name.split("/")).read_bytes()
    return sha256(content).hexdigest()[:12]


@cache
def _pages() -> Environment:
    pages = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Any = pages.filters  # typed as exactly those that Jinja has itself; so are its globals
    names: Any = pages.globals
    filters |= {
        "yaml": _yaml,
        "when": _when,
        "ago": _ago,
        "number": _number,
        "moment": _moment,
        "triggers": _triggers,
        "message": _MESSAGES.get,
    }
    names["asset"] = _asset
    return pages


def _asset(name: str) -> str:
    """The address of a file below static."""
    return f"/static/{name}?v={asset_hash(name)}"


def _yaml(value: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=120)
    return text


def _moment(value: object) -> datetime | None:
    """From the API server's spelling; None for what is no time."""
    try:
        return datetime.fromisoformat(str(value)) if value else None
    except ValueError:
        return None


def _triggers(topics: Sequence[str]) -> str:
    """For hx-trigger: reads again when one of the topics has changed, or a script asks for it.

    htmx takes a slash for the beginning of a quoted text, up to the next one or the end: what has one slash comes last.
    """
    return ", ".join(
        ["refresh", *(f"sse:{topic}" for topic in sorted(topics, key=lambda each: each.count("/") == 1))]
    )


def _when(value: datetime | None) -> str:
    return "" if value is None else timestamp(value)


def _ago(value: datetime | None) -> str:
    """How long ago it was, in the largest unit that fits."""
    if value is None:
        return ""
    seconds = int((datetime.now(UTC) - value).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if abs(seconds) >= size:
            return f"{seconds // size} {unit} ago" if seconds >= 0 else f"in {-seconds // size} {unit}"
    return f"{seconds} s ago" if seconds >= 0 else f"in {-seconds} s"


def _number(value: float | None) -> str:
    """With three digits that count; a dash for what nobody knows."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
