"""Signing in and out."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from tidegate.web.access.door import LocalDoor, TokenDoor
from tidegate.web.access.sessions import LASTING, Seal
from tidegate.web.forms import AnyFields
from tidegate.web.rendering import shown_to_anybody
from tidegate.web.visitor import OfApp

_SEE_OTHER: Final = 303
_UNAUTHORIZED: Final = 401

router: Final = APIRouter(include_in_schema=False)


@router.get("/sign-in")
async def sign_in_page(parts: OfApp, onward: Annotated[str, Query(alias="next")] = "/") -> HTMLResponse:
    """Where a token is typed."""
    return _page(parts.door.mode.value, _own(onward))


@router.post("/sign-in")
async def sign_in(parts: OfApp, request: Request, fields: AnyFields) -> Response:
    """Checks the token, and leaves it sealed with the browser."""
    onward = _own(fields.get("next", "/"))
    if not isinstance(parts.door, TokenDoor):
        return _page(parts.door.mode.value, onward)
    token = fields.get("token", "").strip()
    address = request.client.host if request.client is not None else ""
    identity = await parts.door.sign_in(token, address)
    if identity is None:
        return _page(
            parts.door.mode.value, onward, "the API server does not know this token; it may have ended"
        )
    response = RedirectResponse(onward, _SEE_OTHER)
    _keep(response, parts.seal, token, request)
    return response


@router.get("/enter")
async def enter(
    parts: OfApp, request: Request, ticket: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """For whoever has started the dashboard: the address that was printed leads here."""
    if not isinstance(parts.door, LocalDoor) or not parts.door.fits(ticket):
        return _page(parts.door.mode.value, "/", "this address is of another dashboard, or of an earlier one")
    response = RedirectResponse("/", _SEE_OTHER)
    _keep(response, parts.seal, ticket, request)
    return response


@router.post("/sign-out")
async def sign_out(parts: OfApp) -> Response:
    """Takes it away again, whether or not the token is anybody's any more; other sites do not get as far as here."""
    response = RedirectResponse("/sign-in", _SEE_OTHER)
    response.delete_cookie(parts.seal.cookie, path="/", httponly=True, samesite="strict")
    return response


def to_sign_in(path: str) -> Response:
    """Where somebody is sent whom nobody knows, and from there back to where they were going."""
    return RedirectResponse(f"/sign-in?next={quote(path, safe='')}", _SEE_OTHER)


def _keep(response: Response, seal: Seal, token: str, request: Request) -> None:
    """Out of reach of scripts and of other sites; over TLS alone where the browser came by it."""
    secure = urlsplit(request.headers.get("origin", "")).scheme == "https" or request.url.scheme == "https"
    lasting = int(LASTING.total_seconds())
    response.set_cookie(
        seal.cookie,
        seal.sealed(token),
        max_age=lasting,
        path="/",
        httponly=True,
        samesite="strict",
        secure=secure,
    )


def _page(mode: str, onward: str, said: str = "") -> HTMLResponse:
    return shown_to_anybody(
        "sign_in.html", status=_UNAUTHORIZED if said else 200, auth=mode, onward=onward, said=said
    )


def _own(onward: str) -> str:
    """A path of ours; anything else would lead astray."""
    safe = onward.startswith("/") and not onward.startswith(("//", "/\\"))
    return onward if safe and "\n" not in onward and "\r" not in onward else "/"
