"""Validation rules and list types of CRD fields; the API server enforces them by CEL, and our parser in Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

VALIDATIONS_KEY: Final = "x-kubernetes-validations"


class BrokenRuleError(ValueError):
    """Value that breaks a rule; `field` is the part of it to correct, or empty."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """A rule for a value: CEL for the API server, and the same check in Python, for objects that an older CRD let pass.

    `field` names the part of the value to correct, in the API's spelling (`maxQueueDelay`).
    """

    cel: str
    message: str
    check: Callable[[Any], bool]
    field: str = ""

    def to_schema(self) -> dict[str, str]:
        """Return the entry of x-kubernetes-validations."""
        entry = {"rule": self.cel, "message": self.message}
        if self.field:
            entry["fieldPath"] = f".{self.field}"
        return entry

    def enforce(self, value: Any) -> None:
        """Raise BrokenRuleError with the rule's message if `value` breaks it."""
        if not self.check(value):
            raise BrokenRuleError(self.message, field=self.field)


@dataclass(frozen=True, slots=True)
class ValidationRules:
    """The rules of one field, as `Annotated[…, ValidationRules(…)]`; ApiModel.RULES has those of a whole model."""

    rules: tuple[ValidationRule, ...]

    def __init__(self, *rules: ValidationRule) -> None:
        object.__setattr__(self, "rules", rules)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._enforce_all, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return with_rules(handler(schema), self.rules)

    def _enforce_all(self, value: Any) -> Any:
        for rule in self.rules:
            rule.enforce(value)
        return value


def with_rules(schema: JsonSchemaValue, rules: tuple[ValidationRule, ...]) -> JsonSchemaValue:
    """Return `schema` with the CEL form of `rules` added."""
    if not rules:
        return schema
    return {
        **schema,
        VALIDATIONS_KEY: [*schema.get(VALIDATIONS_KEY, []), *(rule.to_schema() for rule in rules)],
    }


def must_match(pattern: str, message: str) -> ValidationRule:
    """Require that the whole string matches `pattern` (no anchors; only syntax that RE2 and Python share).

    The schema's own `pattern` would report the expression instead of a sentence.
    """
    expression = re.compile(pattern)
    return ValidationRule(
        cel=f"self.matches(r'^(?:{pattern})$')",
        message=message,
        check=lambda text: expression.fullmatch(text) is not None,
    )


def must_not_match(pattern: str, message: str) -> ValidationRule:
    """Require that no part of the string matches `pattern`."""
    expression = re.compile(pattern)
    return ValidationRule(
        cel=f"!self.matches(r'{pattern}')",
        message=message,
        check=lambda text: expression.search(text) is None,
    )


@dataclass(frozen=True, slots=True)
class ListMap:
    """Annotated[tuple[…], ListMap("name")]: items are unique by a key, and merged by it in server-side apply."""

    key: str
    attribute: str = ""
    """Name of the key in Python, if it differs."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check_unique, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {
            **handler(schema),
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": [self.key],
        }

    def _check_unique(self, items: Sequence[Any]) -> Sequence[Any]:
        _refuse_duplicates([getattr(item, self.attribute or self.key) for item in items], noun=self.key)
        return items


@dataclass(frozen=True, slots=True)
class ListSet:
    """Annotated[tuple[…], ListSet()]: unique scalars, merged individually in server-side apply."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check_unique, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "x-kubernetes-list-type": "set"}

    def _check_unique(self, items: Sequence[Any]) -> Sequence[Any]:
        _refuse_duplicates(items, noun="value")
        return items


@dataclass(frozen=True, slots=True)
class ListAtomic:
    """Annotated[tuple[…], ListAtomic()]: a list that is always replaced as a whole."""

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "x-kubernetes-list-type": "atomic"}


def _refuse_duplicates(values: Sequence[Any], *, noun: str) -> None:
    previous: set[Any] = set()
    for value in values:
        if value in previous:
            message = f"the {noun} '{value}' is there twice: each may appear once"
            raise ValueError(message)
        previous.add(value)
