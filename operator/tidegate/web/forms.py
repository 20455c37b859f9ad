"""Parse forms, and verify that the page with the form was rendered for the same user."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from tidegate.errors import PermanentError
from tidegate.web.request_context import AuthenticatedContext, RequestContext

_MAX_BYTES: Final = 1 << 20
CSRF_FIELD: Final = "csrf"


class ForgedFormError(PermanentError):
    """A form without a valid CSRF token: another site sent it, or the page belongs to an earlier session."""


async def parse_form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form, the last of each name. Raises PermanentError if it is not a form, or too long."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        message = "the request is not a form: send Content-Type application/x-www-form-urlencoded"
        raise PermanentError(message)
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > _MAX_BYTES:
            message = f"the form has more than {_MAX_BYTES} bytes"
            raise PermanentError(message)
    return dict(parse_qsl(content.decode(errors="replace"), keep_blank_values=True, max_num_fields=10_000))


async def verify_form(
    context: AuthenticatedContext, fields: Annotated[Mapping[str, str], Depends(parse_form)]
) -> Mapping[str, str]:
    """Return the fields of a form with a valid CSRF token. Raises ForgedFormError."""
    if not has_csrf_token(context, fields):
        message = "this page is of an earlier session: reload it and try again"
        raise ForgedFormError(message)
    return fields


def has_csrf_token(context: RequestContext, fields: Mapping[str, str]) -> bool:
    """Return whether the form has the CSRF token of this user."""
    return context.app.seal.verify_csrf_token(context.identity, fields.get(CSRF_FIELD, ""))


VerifiedForm = Annotated[Mapping[str, str], Depends(verify_form)]
UnverifiedForm = Annotated[Mapping[str, str], Depends(parse_form)]


def parse_change_fields(fields: Mapping[str, str], settings: Collection[str]) -> dict[str, Any]:
    """Return the body of a what-if from fields like `floor.offline` and `demand:ads/ctr`, and those of `settings`.

    Empty fields change nothing.
    """
    changes: dict[str, Any] = {}
    inferences: dict[str, dict[str, Any]] = {}
    tiers: dict[str, dict[str, Any]] = {}
    for field, text in fields.items():
        value = text.strip()
        if not value:
            continue
        if field in settings:
            changes[field] = value
        elif field.startswith(("floor.", "ceiling.")):
            bound, _, tier = field.partition(".")
            tiers.setdefault(tier, {"tier": tier})[bound] = value
        elif ":" in field:
            setting, _, name = field.partition(":")
            key = "factor" if setting == "demand" and value.startswith("x") else setting
            inferences.setdefault(name, {"inference": name})[key] = value.removeprefix("x")
    return {**changes, "inferences": list(inferences.values()), "tiers": list(tiers.values())}
