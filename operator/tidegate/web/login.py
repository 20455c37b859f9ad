"""Sign users in and out."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from tidegate.web.access.authenticators import LocalAuthenticator, TokenAuthenticator
from tidegate.web.access.sessions import SESSION_DURATION, SessionSeal
from tidegate.web.forms import UnverifiedForm
from tidegate.web.rendering import render_public_page
from tidegate.web.request_context import CurrentApp

_SEE_OTHER: Final = 303
_UNAUTHORIZED: Final = 401

router: Final = APIRouter(include_in_schema=False)


@router.get("/sign-in")
async def sign_in_page(app: CurrentApp, onward: Annotated[str, Query(alias="next")] = "/") -> HTMLResponse:
    """Show the form for a token."""
    return _render_sign_in(app.authenticator.mode.value, _local_path(onward))


@router.post("/sign-in")
async def sign_in(app: CurrentApp, request: Request, fields: UnverifiedForm) -> Response:
    """Check the token, and store it encrypted in a cookie."""
    onward = _local_path(fields.get("next", "/"))
    if not isinstance(app.authenticator, TokenAuthenticator):
        return _render_sign_in(app.authenticator.mode.value, onward)
    token = fields.get("token", "").strip()
    address = request.client.host if request.client is not None else ""
    identity = await app.authenticator.sign_in(token, address)
    if identity is None:
        return _render_sign_in(
            app.authenticator.mode.value, onward, "the API server rejects this token: it may have expired"
        )
    response = RedirectResponse(onward, _SEE_OTHER)
    _set_session_cookie(response, app.seal, token, request)
    return response


@router.get("/enter")
async def enter_with_ticket(
    app: CurrentApp, request: Request, ticket: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """Sign in the user who started the dashboard, with the ticket in the printed address."""
    if not isinstance(app.authenticator, LocalAuthenticator) or not app.authenticator.matches_ticket(ticket):
        return _render_sign_in(
            app.authenticator.mode.value,
            "/",
            "this address belongs to another dashboard, or to an earlier run of it",
        )
    response = RedirectResponse("/", _SEE_OTHER)
    _set_session_cookie(response, app.seal, ticket, request)
    return response


@router.post("/sign-out")
async def sign_out(app: CurrentApp) -> Response:
    """Delete the session cookie, even of an expired token; requests from other sites are rejected earlier."""
    response = RedirectResponse("/sign-in", _SEE_OTHER)
    response.delete_cookie(app.seal.cookie_name, path="/", httponly=True, samesite="strict")
    return response


def redirect_to_sign_in(path: str) -> Response:
    """Return a redirect to the sign-in page, which leads back to `path`."""
    return RedirectResponse(f"/sign-in?next={quote(path, safe='')}", _SEE_OTHER)


def _set_session_cookie(response: Response, seal: SessionSeal, token: str, request: Request) -> None:
    """Set the session cookie: HttpOnly, SameSite=Strict, and Secure if the request used TLS."""
    secure = urlsplit(request.headers.get("origin", "")).scheme == "https" or request.url.scheme == "https"
    response.set_cookie(
        seal.cookie_name,
        seal.seal_token(token),
        max_age=int(SESSION_DURATION.total_seconds()),
        path="/",
        httponly=True,
        samesite="strict",
        secure=secure,
    )


def _render_sign_in(mode: str, onward: str, error: str = "") -> HTMLResponse:
    return render_public_page(
        "sign_in.html", status=_UNAUTHORIZED if error else 200, auth=mode, onward=onward, message=error
    )


def _local_path(onward: str) -> str:
    """Return the path if it belongs to the dashboard, else `/`: a link must not redirect to another site."""
    safe = onward.startswith("/") and not onward.startswith(("//", "/\\"))
    return onward if safe and "\n" not in onward and "\r" not in onward else "/"
