"""How a ModelAccess tells requests apart: by headers, and users by a header or a cookie."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field
from pydantic.alias_generators import to_snake

from tidegate.api.meta import ApiModel
from tidegate.api.patterns import program_size
from tidegate.api.schema import ListMap, Rule, Rules, lacks, matches

MAX_MATCH_LENGTH: Final = 256

HeaderName = Annotated[
    str,
    Field(min_length=1, max_length=128),
    Rules(
        matches(
            r"[a-z0-9][a-z0-9_-]*",
            "must be a lower-case header name, as HTTP/2 sends it; pseudo-headers like :authority are not headers: "
            "use hosts",
        ),
        lacks(
            r"^(x-envoy-.*|x-tidegate-.*|host)$",
            "must not be host, x-envoy-… or x-tidegate-…: the gateway itself sets or removes those",
        ),
    ),
]


HeaderText = Annotated[str, Field(min_length=1, max_length=MAX_MATCH_LENGTH, pattern=r"^[ -~]+$")]

CookieName = Annotated[
    str,
    Field(min_length=1, max_length=128),
    Rules(matches(r"[A-Za-z0-9_.-]+", "must be letters, digits, underscores, dots and dashes")),
]


def exactly_one(*fields: str) -> Rule:
    """Of `fields`, which are optional and in the API's spelling, one must be given and the others not."""
    given = ", ".join(f"has(self.{field})" for field in fields)
    return Rule(
        cel=f"[{given}].filter(given, given).size() == 1",
        message=f"give exactly one of {', '.join(fields)}",
        check=lambda value: sum(getattr(value, to_snake(field)) is not None for field in fields) == 1,
    )


class HeaderMatch(ApiModel):
    """One header that a request must carry, and what its value must be: exactly one of exact, prefix and regex."""

    RULES: ClassVar[tuple[Rule, ...]] = (exactly_one("exact", "prefix", "regex"),)

    name: Annotated[
        HeaderName, Field(description="The header's name, lower-case; for gRPC, the metadata key.")
    ]
    exact: Annotated[
        HeaderText | None,
        Field(description="The value it must have, byte for byte; printable ASCII, at most 256 characters."),
    ] = None
    prefix: Annotated[
        HeaderText | None,
        Field(
            description="What the value must begin with, byte for byte; printable ASCII, at most 256 characters."
        ),
    ] = None
    regex: Annotated[
        Annotated[
            HeaderText,
            Rules(
                Rule(
                    # Never false: an expression that does not compile is an error, and an error refuses in its own words,
                    # so the message begins like those.
                    cel="''.matches(self) in [true, false]",
                    message="error parsing regexp: it must be one of RE2 (https://github.com/google/re2/wiki/Syntax)",
                    check=lambda text: program_size(text) is not None,
                )
            ),
        ]
        | None,
        Field(
            description="A regular expression of RE2 for the whole value, at most 256 characters and 100 instructions of RE2; "
            "a larger one leaves its route out, and Ready says so."
        ),
    ] = None


class Match(ApiModel):
    """Which requests a route takes: those that meet every condition here."""

    headers: Annotated[
        tuple[HeaderMatch, ...],
        Field(min_length=1, max_length=8, description="Headers that must all be there, with these values."),
        ListMap("name"),
    ]


class Sticky(ApiModel):
    """What keeps a user on one target: the value of a header or of a cookie."""

    RULES: ClassVar[tuple[Rule, ...]] = (exactly_one("header", "cookie"),)

    header: Annotated[
        HeaderName | None,
        Field(
            description="Header (gRPC metadata key) whose value names the user. "
            "A request without it goes to a target by weight, at random."
        ),
    ] = None
    cookie: Annotated[
        CookieName | None,
        Field(
            description="Cookie whose value names the user; the gateway only reads it. "
            "A request without it goes to a target by weight, at random."
        ),
    ] = None
