"""What browsers send: form fields, and proof that the page which sent them was shown to the same visitor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from tidegate.errors import PermanentError
from tidegate.web.visitor import Known, Visitor

_MOST_BYTES: Final = 1 << 20
FIELD: Final = "csrf"


class ForgedError(PermanentError):
    """A form without the proof: another site made it, or the page is of an earlier session."""


async def fields_of(request: Request) -> Mapping[str, str]:
    """The fields of a form, the last of each name. Raises PermanentError for what is no form, or too long for one."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        message = "want a form: Content-Type application/x-www-form-urlencoded"
        raise PermanentError(message)
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > _MOST_BYTES:
            message = f"the form has more than {_MOST_BYTES} bytes"
            raise PermanentError(message)
    return dict(parse_qsl(content.decode(errors="replace"), keep_blank_values=True, max_num_fields=10_000))


async def checked_fields(
    visitor: Known, fields: Annotated[Mapping[str, str], Depends(fields_of)]
) -> Mapping[str, str]:
    """The fields of a form that was shown to this visitor."""
    if not vouched(visitor, fields):
        message = "this page is of an earlier session: reload it, and try again"
        raise ForgedError(message)
    return fields


def vouched(visitor: Visitor, fields: Mapping[str, str]) -> bool:
    """Whether they bring what the page was given."""
    return visitor.parts.seal.vouches(visitor.identity, fields.get(FIELD, ""))


Fields = Annotated[Mapping[str, str], Depends(checked_fields)]
AnyFields = Annotated[Mapping[str, str], Depends(fields_of)]
