"""How a ModelAccess matches requests by headers, and identifies users by a header or a cookie."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field
from pydantic.alias_generators import to_snake

from tidegate.api.meta import ApiModel
from tidegate.api.patterns import measure_program
from tidegate.api.schema import ListMap, ValidationRule, ValidationRules, must_match, must_not_match

MAX_MATCH_LENGTH: Final = 256

HeaderName = Annotated[
    str,
    Field(min_length=1, max_length=128),
    ValidationRules(
        must_match(
            r"[a-z0-9][a-z0-9_-]*",
            "must be a lower-case header name, as HTTP/2 sends it; pseudo-headers like :authority are not headers: "
            "use hosts",
        ),
        must_not_match(
            r"^(x-envoy-.*|x-tidegate-.*|host)$",
            "must not be host, x-envoy-… or x-tidegate-…: the gateway itself sets or removes those",
        ),
    ),
]


HeaderText = Annotated[str, Field(min_length=1, max_length=MAX_MATCH_LENGTH, pattern=r"^[ -~]+$")]

CookieName = Annotated[
    str,
    Field(min_length=1, max_length=128),
    ValidationRules(must_match(r"[A-Za-z0-9_.-]+", "must be letters, digits, underscores, dots and dashes")),
]


def exactly_one(*fields: str) -> ValidationRule:
    """Require exactly one of several optional fields, given in the API's spelling (camelCase)."""
    given = ", ".join(f"has(self.{field})" for field in fields)
    return ValidationRule(
        cel=f"[{given}].filter(given, given).size() == 1",
        message=f"give exactly one of {', '.join(fields)}",
        check=lambda value: sum(getattr(value, to_snake(field)) is not None for field in fields) == 1,
    )


class HeaderMatch(ApiModel):
    """A header that a request must have, and its value: exactly one of exact, prefix and regex."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (exactly_one("exact", "prefix", "regex"),)

    name: Annotated[
        HeaderName, Field(description="The header's name, lower-case; for gRPC, the metadata key.")
    ]
    exact: Annotated[
        HeaderText | None,
        Field(description="Required value, byte for byte; printable ASCII, at most 256 characters."),
    ] = None
    prefix: Annotated[
        HeaderText | None,
        Field(
            description="Required prefix of the value, byte for byte; printable ASCII, at most 256 characters."
        ),
    ] = None
    regex: Annotated[
        Annotated[
            HeaderText,
            ValidationRules(
                ValidationRule(
                    # Never false. An expression that does not compile is an evaluation error, whose text the API server
                    # returns instead of our message; so our message begins like that text.
                    cel="''.matches(self) in [true, false]",
                    message="error parsing regexp: it must be one of RE2 (https://github.com/google/re2/wiki/Syntax)",
                    check=lambda text: measure_program(text) is not None,
                )
            ),
        ]
        | None,
        Field(
            description="A regular expression of RE2 for the whole value, at most 256 characters and 100 instructions of RE2; "
            "a larger one disables its route, and Ready reports it."
        ),
    ] = None


class RequestMatch(ApiModel):
    """Conditions that a request must all meet to take the route."""

    headers: Annotated[
        tuple[HeaderMatch, ...],
        Field(min_length=1, max_length=8, description="Headers that a request must have, with these values."),
        ListMap("name"),
    ]


class StickySession(ApiModel):
    """Keeps a user on one target, by the value of a header or a cookie."""

    RULES: ClassVar[tuple[ValidationRule, ...]] = (exactly_one("header", "cookie"),)

    header: Annotated[
        HeaderName | None,
        Field(
            description="Header (gRPC metadata key) whose value identifies the user. "
            "A request without it goes to a target by weight, at random."
        ),
    ] = None
    cookie: Annotated[
        CookieName | None,
        Field(
            description="Cookie whose value identifies the user; the gateway only reads it. "
            "A request without it goes to a target by weight, at random."
        ),
    ] = None
