"""Create the web application: pages, API, and the responses for errors."""

from __future__ import annotations

from collections.abc import Collection
from importlib.resources import as_file, files
from typing import Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.telemetry import TelemetryConfig
from opentelemetry.trace import TracerProvider
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from tidegate import __version__
from tidegate.errors import (
    ConflictError,
    NotAllowedError,
    RetryableError,
    TidegateError,
    UnauthorizedError,
)
from tidegate.web import api, login, pages
from tidegate.web.access.guard import RequestGuard
from tidegate.web.access.tokens import TooManyTokensError
from tidegate.web.app_state import AppState
from tidegate.web.rendering import asset_hash, render_public_page
from tidegate.web.request_context import (
    ForbiddenError,
    ObjectNotFoundError,
    SignInRequiredError,
    encode_namespace,
    read_namespace,
)

_STATUS_BY_ERROR: Final[tuple[tuple[type[Exception], int], ...]] = (
    (SignInRequiredError, 401),
    (UnauthorizedError, 401),
    (ForbiddenError, 403),
    (NotAllowedError, 403),
    (ObjectNotFoundError, 404),
    (TooManyTokensError, 429),
    (ConflictError, 409),
    (RetryableError, 503),
    (TidegateError, 400),
    (ValueError, 400),
)
log: Final = structlog.stdlib.get_logger()

_CACHE_FOR_A_YEAR: Final = "public, max-age=31536000, immutable"


def create_app(state: AppState, hosts: Collection[str], spans: TracerProvider | None = None) -> FastAPI:
    """Return the application, which serves only requests to the names in `hosts`, with a span for each if `spans` is given."""
    app = FastAPI(
        title="Tidegate",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        telemetry=_telemetry_config(spans),
    )
    app.state.app_state = state
    app.include_router(login.router)
    app.include_router(pages.router)
    app.include_router(api.router)
    with as_file(files("tidegate.web").joinpath("static")) as folder:
        app.mount("/static", _Assets(directory=folder))
    for error, _ in _STATUS_BY_ERROR:
        app.add_exception_handler(error, _handle_error)
    app.add_exception_handler(HTTPException, _handle_error)
    app.add_exception_handler(RequestValidationError, _handle_error)
    app.add_middleware(RequestGuard, hosts=hosts)
    return app


def _telemetry_config(spans: TracerProvider | None) -> TelemetryConfig:
    """Return a configuration with one span for each request, independent of environment variables."""
    return {
        "tracer_provider": spans,
        "tracing": spans is not None,
        "operation_spans": False,
        "metrics": False,
        "logs": False,
        "auto_configure": False,
        "exclude": lambda scope: str(scope.get("path", "")).startswith("/static/"),
    }


class _Assets(StaticFiles):
    """Static files whose URL contains their hash, so that browsers can cache them for a year."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        scope: Scope = args[2]  # type: ignore[assignment]
        name = str(scope["path"]).partition("/static/")[2]
        # During a rollout, a page of one version may get a file of the other: do not cache it if the hash differs.
        if scope.get("query_string", b"") == f"v={asset_hash(name)}".encode():
            response.headers["cache-control"] = _CACHE_FOR_A_YEAR
        return response


async def _handle_error(request: Request, error: Exception) -> Response:
    """Return JSON for the API and a page for browsers; redirect unauthenticated browsers to the sign-in page."""
    status, message = _find_status(error), _error_message(error)
    if status >= 500:
        log.warning("request_failed", path=request.url.path, status=status, error=message)
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    if isinstance(error, HTTPException):
        headers |= error.headers or {}
    if isinstance(error, TooManyTokensError):
        headers["retry-after"] = str(error.seconds)
    if request.url.path.startswith("/api/"):
        return api.error_response(status, message, headers)
    if status == 401 and request.method == "GET":
        query = f"?{request.url.query}" if request.url.query else ""
        return login.redirect_to_sign_in(f"{request.url.path}{query}")
    namespace_query = encode_namespace(read_namespace(request))
    return render_public_page(
        "refused.html", status, message=message, status_code=status, kept=namespace_query
    )


def _find_status(error: Exception) -> int:
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, RequestValidationError):
        return 422
    return next((status for kind, status in _STATUS_BY_ERROR if isinstance(error, kind)), 500)


def _error_message(error: Exception) -> str:
    if isinstance(error, HTTPException):
        return str(error.detail)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return str(error)
