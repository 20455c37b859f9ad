"""Field types that several kinds share: durations, quantities, names, URIs and resources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Annotated, Any, Final

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from tidegate.api.durations import DURATION_PATTERN, parse_duration
from tidegate.api.meta import DNS_LABEL, ApiModel
from tidegate.api.quantities import QUANTITY_PATTERN, parse_quantity
from tidegate.api.schema import ValidationRule, ValidationRules, must_match, must_not_match, with_rules
from tidegate_dataplane.contract import REVISION_SCHEMES, TABLE_SCHEMES, WRITABLE_SCHEMES, UriScheme

MAX_REPLICAS: Final = 1_000
SHA256_PATTERN: Final = r"^[0-9a-f]{64}$"

# Short enough that the rules over it stay within the API server's cost budget.
MAX_URI_LENGTH: Final = 1_024

_SCHEME_PATTERN: Final = "|".join(UriScheme)


def _make_uri_pattern(schemes: Iterable[UriScheme]) -> str:
    """Return a regular expression of URIs up to their path; schemes in a row that have the same form share theirs."""
    alternatives: list[str] = []
    for pattern, group in groupby(schemes, lambda scheme: scheme.traits.pattern):
        names = "|".join(group)
        alternatives.append(f"({names})://{pattern}" if "|" in names else f"{names}://{pattern}")
    return "|".join(alternatives)


def _list_choices(choices: Sequence[str]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


_URI_PATTERN: Final = _make_uri_pattern(UriScheme)


def duration_between(shortest: str, longest: str) -> ValidationRules:
    """Require a duration from `shortest` to `longest`, both included, like 250ms or 30s."""
    low, high = parse_duration(shortest), parse_duration(longest)
    return ValidationRules(
        ValidationRule(
            cel=f"duration(self) >= duration('{shortest}') && duration(self) <= duration('{longest}')",
            message=f"must be from {shortest} to {longest}",
            check=lambda text: low <= parse_duration(text) <= high,
        )
    )


_DECIMAL_PATTERN: Final = r"[0-9]{1,12}([.][0-9]{1,9})?"

DecimalText = Annotated[
    str,
    Field(min_length=1, max_length=24),
    ValidationRules(
        must_match(_DECIMAL_PATTERN, "must be a decimal number in quotes, like '0.001' or '1.10'")
    ),
]

_TIME_PATTERN: Final = (
    r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z"
)

TimeText = Annotated[
    str,
    Field(min_length=20, max_length=20),
    ValidationRules(
        must_match(_TIME_PATTERN, "must be a time in UTC and in quotes, like '2026-11-22T18:00:00Z'"),
        ValidationRule(
            # Both CEL and Python fail to parse a day that does not exist, such as February 30.
            cel=f"!self.matches(r'^{_TIME_PATTERN}$') || timestamp(self).getFullYear() >= 2000",
            message="must be a day that the calendar has, from the year 2000 on",
            check=lambda text: datetime.fromisoformat(text).year >= 2000,
        ),
    ),
]

DurationText = Annotated[str, Field(pattern=DURATION_PATTERN, max_length=16)]


@dataclass(frozen=True, slots=True)
class QuantityBetween:
    """Annotated[str, QuantityBetween(…)]: a quantity within bounds, given as a string or as a YAML number."""

    smallest: str
    largest: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        checked = core_schema.no_info_after_validator_function(self._check_range, handler(source))
        return core_schema.no_info_before_validator_function(_number_as_text, checked)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        text = handler(schema)
        del text["type"]
        return with_rules({"x-kubernetes-int-or-string": True, **text}, (self._range_rule,))

    @property
    def _range_rule(self) -> ValidationRule:
        low, high = parse_quantity(self.smallest), parse_quantity(self.largest)
        return ValidationRule(
            cel=(
                f"quantity(string(self)).compareTo(quantity('{self.smallest}')) >= 0 && "
                f"quantity(string(self)).compareTo(quantity('{self.largest}')) <= 0"
            ),
            message=f"must be from {self.smallest} to {self.largest}",
            check=lambda text: low <= parse_quantity(text) <= high,
        )

    def _check_range(self, text: str) -> str:
        self._range_rule.enforce(text)
        return text


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Cpu = Annotated[str, Field(pattern=QUANTITY_PATTERN, max_length=32), QuantityBetween("10m", "1024")]
Memory = Annotated[str, Field(pattern=QUANTITY_PATTERN, max_length=32), QuantityBetween("32Mi", "64Ti")]

ObjectName = Annotated[
    str,
    Field(min_length=1, max_length=63),
    ValidationRules(
        must_match(DNS_LABEL, "must be a DNS label: lower-case letters, digits and dashes, at most 63")
    ),
]

MAX_SHARED_NAME: Final = 127
"""Two DNS labels and a slash."""

SharedName = Annotated[
    str,
    Field(min_length=1, max_length=MAX_SHARED_NAME),
    ValidationRules(
        must_match(
            f"({DNS_LABEL}/)?{DNS_LABEL}",
            "must be a DNS label (lower-case letters, digits and dashes, at most 63), or <namespace>/<name>",
        )
    ),
]
"""Name of an object in the same namespace, or of one in another namespace that shares it."""

Identifier = Annotated[
    str,
    Field(min_length=1, max_length=63),
    ValidationRules(
        must_match(
            r"[A-Za-z_][A-Za-z0-9_]*", "must be letters, digits and underscores, not beginning with a digit"
        )
    ),
]

Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN, max_length=64)]

Uri = Annotated[
    str,
    Field(min_length=1, max_length=MAX_URI_LENGTH),
    ValidationRules(
        ValidationRule(
            cel=f"self.matches(r'^({_SCHEME_PATTERN})://')",
            message=f"must begin with {_list_choices([f'{scheme}://' for scheme in UriScheme])}",
            check=lambda text: re.match(f"({_SCHEME_PATTERN})://", text) is not None,
        ),
        must_not_match(
            r"(^|/)[.][.](/|$)|%2[eE]|%2[fF]|%5[cC]", "must have no '..' segment, nor one hidden by % escapes"
        ),
        must_not_match(
            r"[^!-~]|[@?#\\]",
            "must be plain ASCII without blanks, credentials (@), query (?), fragment (#) or backslash",
        ),
        must_not_match(
            "^oci://[^/]+/.*:", "must name no tag: that is what model.version or model.revision says"
        ),
        ValidationRule(
            cel=f"!self.matches(r'^({_SCHEME_PATTERN})://') || self.matches(r'^({_URI_PATTERN})(/|$)')",
            message=f"must name a place: {_list_choices([scheme.uri_form for scheme in UriScheme])}",
            check=lambda text: re.match(rf"({_URI_PATTERN})(/|\Z)", text) is not None,
        ),
    ),
]


TableUri = Annotated[
    Uri,
    ValidationRules(
        must_not_match(
            f"^({'|'.join(REVISION_SCHEMES)})://",
            f"a table has no version, as {' and '.join(f'{scheme}://' for scheme in REVISION_SCHEMES)} need: "
            "put the file elsewhere",
        ),
    ),
]


TableFolderUri = Annotated[
    TableUri,
    ValidationRules(
        *(
            must_not_match(f"^{scheme}://", f"a folder cannot be listed over {scheme}: use s3, gs or pvc")
            for scheme in UriScheme
            if scheme not in {*TABLE_SCHEMES, *REVISION_SCHEMES}
        )
    ),
]


def _allow_folders_of(schemes: Sequence[UriScheme]) -> ValidationRules:
    """Return the rules of a folder that pods write to."""
    return ValidationRules(
        must_match(
            f"({_make_uri_pattern(schemes)})(/[A-Za-z0-9._/=-]*)?",
            f"must be {_list_choices([scheme.uri_form for scheme in schemes])}, of letters, digits and ._=-",
        ),
        must_not_match(r"(^|/)[.][.](/|$)", "must not leave the folder that it names: remove the .. from it"),
    )


WritableUri = Annotated[
    str, Field(min_length=1, max_length=MAX_URI_LENGTH), _allow_folders_of(WRITABLE_SCHEMES)
]

ObjectStoreUri = Annotated[
    str,
    Field(min_length=1, max_length=MAX_URI_LENGTH),
    _allow_folders_of([scheme for scheme in WRITABLE_SCHEMES if not scheme.traits.is_mounted]),
]


class Resources(ApiModel):
    """CPU and memory of one pod. Requests equal limits."""

    cpu: Annotated[Cpu, Field(description="Cores for each replica, as a quantity: 500m is half a core.")] = (
        "1"
    )
    memory: Annotated[Memory, Field(description="Memory for each replica, in bytes, as a quantity.")] = "2Gi"
