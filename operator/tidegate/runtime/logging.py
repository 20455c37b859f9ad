"""Structured logs: short event names with keys, JSON in a cluster, colours on a terminal."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import Any

import structlog


class LogFormat(StrEnum):
    """Format of log lines."""

    JSON = "json"
    CONSOLE = "console"


def configure_logging(*, level: str = "info", log_format: LogFormat | None = None) -> None:
    """Send every log, structlog's and the standard library's, to standard error in one format.

    Without `log_format`: console on a terminal, JSON elsewhere.
    Raise ValueError for an unknown level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        message = f"unknown log level '{level}': use debug, info, warning or error"
        raise ValueError(message)
    chosen = log_format or (LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _format_key,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_make_renderers(chosen)],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    # One line for each request would be most of the log, and metrics have the same facts.
    for chatty in ("aiohttp.access", "urllib3", "kopf.objects"):
        logging.getLogger(chatty).setLevel(max(number, logging.WARNING))


def _make_renderers(log_format: LogFormat) -> list[Any]:
    match log_format:
        case LogFormat.JSON:
            return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        case LogFormat.CONSOLE:
            return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]


def _format_key(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Write `key=ObjectKey(…)` as ads/ctr."""
    if "key" in event:
        event["key"] = str(event["key"])
    return event
