"""Render pages from templates, with the variables that all templates share."""

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
from tidegate.api.conditions import format_timestamp
from tidegate.api.messages.catalogue import messages_by_name
from tidegate.api.shared_names import resolve_shared_name
from tidegate.web.request_context import RequestContext

_PACKAGE: Final = "tidegate.web"
_MESSAGES: Final = messages_by_name()


def render_page(context: RequestContext, template: str, status: int = 200, **variables: Any) -> HTMLResponse:
    """Return a page for an authenticated user; its links keep the namespace that the user has chosen."""
    query = context.namespace_query
    common = {
        "user": context.identity.user,
        "csrf": context.csrf_token,
        "mode": context.app.authenticator.mode.value,
        "since": context.feed_position,
        "namespace_filter": context.namespace_filter,
        "kept": query,
        "kept_more": query.replace("?", "&", 1),
    }
    return HTMLResponse(render_template(template, {**common, **variables}), status)


def render_public_page(template: str, status: int = 200, **variables: Any) -> HTMLResponse:
    """Return a page that needs no authentication."""
    common = {"user": "", "csrf": "", "mode": "", "namespace_filter": "", "kept": "", "kept_more": ""}
    return HTMLResponse(render_template(template, {**common, **variables}), status)


def render_template(template: str, variables: Mapping[str, Any]) -> str:
    """Return the text of a page. Raises UndefinedError if the template uses another variable."""
    return _make_environment().get_template(template).render(version=__version__, **variables)


@cache
def asset_hash(name: str) -> str:
    """Return the hash of a file below static, which is part of its URL: browsers cache the file until it changes."""
    content = files(_PACKAGE).joinpath("static", *name.split("/")).read_bytes()
    return sha256(content).hexdigest()[:12]


@cache
def _make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Any = environment.filters  # Jinja types filters and globals as exactly its own
    names: Any = environment.globals
    filters |= {
        "yaml": _to_yaml,
        "when": _format_time,
        "ago": _format_age,
        "number": _format_number,
        "percent": _format_percent,
        "moment": _parse_time,
        "triggers": _htmx_triggers,
        "message": _MESSAGES.get,
    }
    names["asset"] = _asset_url
    names["shared_key"] = resolve_shared_name
    return environment


def _asset_url(name: str) -> str:
    """Return the URL of a file below static."""
    return f"/static/{name}?v={asset_hash(name)}"


def _to_yaml(value: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=120)
    return text


def _parse_time(value: object) -> datetime | None:
    """Parse a time of the API server; None for an invalid one."""
    try:
        return datetime.fromisoformat(str(value)) if value else None
    except ValueError:
        return None


def _htmx_triggers(topics: Sequence[str]) -> str:
    """Return a value of hx-trigger that reloads the page on a change of a topic, or on the event `refresh` of a script."""
    # htmx takes a slash for the beginning of a quoted text, up to the next slash or the end: topics with one slash come last.
    return ", ".join(
        ["refresh", *(f"sse:{topic}" for topic in sorted(topics, key=lambda topic: topic.count("/") == 1))]
    )


def _format_time(value: datetime | None) -> str:
    return "" if value is None else format_timestamp(value)


def _format_age(value: datetime | None) -> str:
    """Return the time since then, in the largest unit that fits."""
    if value is None:
        return ""
    seconds = int((datetime.now(UTC) - value).total_seconds())
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if abs(seconds) >= size:
            return f"{seconds // size} {unit} ago" if seconds >= 0 else f"in {-seconds // size} {unit}"
    return f"{seconds} s ago" if seconds >= 0 else f"in {-seconds} s"


def _format_number(value: float | None) -> str:
    """Return the number with three significant digits; a dash if it is unknown."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _format_percent(value: float | None) -> str:
    """Return a share from 0 to 1 as a percentage; a dash if it is unknown."""
    return "–" if value is None else f"{100 * value:.3g} %"
