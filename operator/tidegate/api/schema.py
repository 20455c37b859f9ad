"""How a pydantic field becomes a CRD field: rules said once and enforced twice, by CEL and when we parse."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

VALIDATIONS: Final = "x-kubernetes-validations"


class BrokenRuleError(ValueError):
    """A value breaks a rule; `field` is the part of it that the message is about, or empty."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule over a value: its CEL form for the API server, its Python twin for what got past an older CRD.

    `field` names the part of the value that the message is about, in the API's spelling (`maxQueueDelay`).
    """

    cel: str
    message: str
    check: Callable[[Any], bool]
    field: str = ""

    def schema(self) -> dict[str, str]:
        """The entry of x-kubernetes-validations."""
        entry = {"rule": self.cel, "message": self.message}
        if self.field:
            entry["fieldPath"] = f".{self.field}"
        return entry

    def enforce(self, value: Any) -> None:
        """Raises BrokenRuleError with the rule's message when `value` breaks it."""
        if not self.check(value):
            raise BrokenRuleError(self.message, field=self.field)


@dataclass(frozen=True, slots=True)
class Rules:
    """Annotated[…, Rules(…)]: puts rules on one field; ApiModel.RULES does the same for a whole model."""

    rules: tuple[Rule, ...]

    def __init__(self, *rules: Rule) -> None:
        object.__setattr__(self, "rules", rules)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._enforce, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return with_rules(handler(schema), self.rules)

    def _enforce(self, value: Any) -> Any:
        for rule in self.rules:
            rule.enforce(value)
        return value


def with_rules(schema: JsonSchemaValue, rules: tuple[Rule, ...]) -> JsonSchemaValue:
    """`schema` with the CEL form of `rules` added."""
    if not rules:
        return schema
    return {**schema, VALIDATIONS: [*schema.get(VALIDATIONS, []), *(rule.schema() for rule in rules)]}


def matches(pattern: str, message: str) -> Rule:
    """The whole string must match `pattern` (no anchors; only what RE2 and Python read alike).

    Instead of the schema's own `pattern`, because that one answers with the expression and not with a sentence.
    """
    expression = re.compile(pattern)
    return Rule(
        cel=f"self.matches(r'^(?:{pattern})$')",
        message=message,
        check=lambda text: expression.fullmatch(text) is not None,
    )


def lacks(pattern: str, message: str) -> Rule:
    """Nothing in the string may match `pattern`."""
    expression = re.compile(pattern)
    return Rule(
        cel=f"!self.matches(r'{pattern}')",
        message=message,
        check=lambda text: expression.search(text) is None,
    )


@dataclass(frozen=True, slots=True)
class ListMap:
    """Annotated[tuple[…], ListMap("name")]: items are unique by that key, and merged by it in server-side apply."""

    key: str
    attribute: str = ""
    """What the key is called in Python, where that differs."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._unique, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {
            **handler(schema),
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": [self.key],
        }

    def _unique(self, items: Sequence[Any]) -> Sequence[Any]:
        _refuse_duplicates([getattr(item, self.attribute or self.key) for item in items], what=self.key)
        return items


@dataclass(frozen=True, slots=True)
class ListSet:
    """Annotated[tuple[…], ListSet()]: unique scalars, merged one by one in server-side apply."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._unique, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "x-kubernetes-list-type": "set"}

    def _unique(self, items: Sequence[Any]) -> Sequence[Any]:
        _refuse_duplicates(items, what="value")
        return items


@dataclass(frozen=True, slots=True)
class ListAtomic:
    """Annotated[tuple[…], ListAtomic()]: always replaced as a whole."""

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "x-kubernetes-list-type": "atomic"}


def _refuse_duplicates(values: Sequence[Any], *, what: str) -> None:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            message = f"the {what} '{value}' is there twice: each may appear once"
            raise ValueError(message)
        seen.add(value)
