"""Base of every kind: key, metadata and parsing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from tidegate.api.schema import BrokenRuleError, ValidationRule, with_rules
from tidegate.errors import InvalidSpecError

GROUP: Final = "tidegate.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

NOT_OBSERVED: Final = -1
"""Not a generation of any object, so that clients wait until the controllers have observed a new object."""

ObservedGeneration = Annotated[
    int,
    Field(
        ge=NOT_OBSERVED,
        description="The metadata.generation that this status describes; -1 until the controllers have observed the object.",
    ),
]

# A name becomes a label value and part of a host name and of a Service's name, so it must be a DNS label.
DNS_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"

_DNS_LABEL: Final = re.compile(DNS_LABEL)
_MAX_VALUE_SHOWN: Final = 80


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Namespace (empty for cluster-wide kinds) and name of an object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `namespace/name`, or `name` alone for a cluster-wide object.

        Raises ValueError when a part is empty or there are more than two.
        """
        namespace, slash, name = text.rpartition("/")
        if not name or "/" in namespace or (slash and not namespace):
            message = f"'{text[:_MAX_VALUE_SHOWN]}' does not name an object: use <namespace>/<name>"
            raise ValueError(message)
        return cls(namespace, name)


class ApiModel(BaseModel):
    """Base of every part of a kind: frozen, camelCase in JSON, rejects unknown fields, enforces rules."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        hide_input_in_errors=True,
    )

    RULES: ClassVar[tuple[ValidationRule, ...]] = ()

    @model_validator(mode="after")
    def _enforce_rules(self) -> Self:
        for rule in self.RULES:
            rule.enforce(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        own = handler(schema)
        resolved = handler.resolve_ref_schema(own)
        resolved.update(with_rules(resolved, cls.RULES))
        return own

    def dump(self) -> dict[str, Any]:
        """Return the model as the API stores it: camelCase, without absent fields, times as RFC 3339."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def share_equal_parts(model: ApiModel, reference: ApiModel | None) -> None:
    """Replace parts of `model` by equal parts of `like`, so that equal parts of many objects share memory.

    Models are frozen, so the change cannot be observed.
    """
    if reference is None or model is reference or type(model) is not type(reference):
        return
    for name, value in tuple(model):
        other = getattr(reference, name)
        if type(value) is type(other) and value == other:
            _set_frozen_field(model, name, other)
        else:
            for part, other_part in _pair_models(value, other):
                share_equal_parts(part, other_part)
    if model.model_fields_set == reference.model_fields_set:
        _set_frozen_field(model, "__pydantic_fields_set__", reference.model_fields_set)


def _pair_models(value: object, other: object) -> Iterator[tuple[ApiModel, ApiModel]]:
    """Yield the pairs of models at the same position of two values, which are models or tuples of them."""
    if isinstance(value, ApiModel) and isinstance(other, ApiModel):
        yield value, other
    elif isinstance(value, tuple) and isinstance(other, tuple):
        pairs = zip(cast("tuple[object, ...]", value), cast("tuple[object, ...]", other), strict=False)
        for item, other_item in pairs:
            yield from _pair_models(item, other_item)


def _set_frozen_field(model: ApiModel, name: str, value: object) -> None:
    # Bypasses the check for frozen models: the new value equals the old one.
    object.__setattr__(model, name, value)


class StatusModel(ApiModel):
    """Base of every part of a status: ignores unknown fields, which another version may have written."""

    model_config = ConfigDict(extra="ignore")


class ObjectMeta(StatusModel):
    """The part of metadata that Tidegate reads."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: Mapping[str, str] = Field(default_factory=dict)
    annotations: Mapping[str, str] = Field(default_factory=dict)

    @field_validator("labels", "annotations", mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        return {} if value is None else value


class CustomResource(ApiModel):
    """An object of one of our kinds, parsed once, where it enters the process."""

    model_config = ConfigDict(extra="ignore")

    KIND: ClassVar[str] = ""
    PLURAL: ClassVar[str] = ""
    NAMESPACED: ClassVar[bool] = True
    RULES: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            cel=f"self.metadata.name.matches(r'^{DNS_LABEL}$')",
            message=(
                "metadata.name must be a DNS label: at most 63 lower-case letters, digits and dashes, "
                "since it becomes a label and a host name"
            ),
            check=lambda resource: _DNS_LABEL.fullmatch(resource.metadata.name) is not None,
            field="metadata",
        ),
    )

    metadata: ObjectMeta

    @property
    def key(self) -> ObjectKey:
        """Return the namespace and name."""
        return ObjectKey(self.metadata.namespace, self.metadata.name)

    @classmethod
    def parse(cls, body: Mapping[str, object]) -> Self:
        """Parse an object and fill in the defaults.

        A status that does not parse (a client has forged it) counts as empty, because we write it again.
        Raises InvalidSpecError, which names the invalid fields.
        """
        fields = dict(body)
        try:
            return cls.model_validate(fields)
        except ValidationError as exc:
            errors = [error for error in _list_errors(exc) if error["loc"][:1] != ("status",)]
            if errors:
                raise _to_invalid_spec_error(errors) from exc
        return cls.model_validate({**fields, "status": {}})

    @classmethod
    def parse_known_fields(cls, body: Mapping[str, object]) -> tuple[Self, tuple[str, ...]]:
        """Parse an object without unknown fields of its spec; return it with the paths of these fields.

        For readers that route traffic: they must not drop an object because a newer version has added a field.
        Unknown fields within `auth` and `match` stay, because without them requests could pass that the newer version rejects.
        Raises InvalidSpecError for these, and for any other invalid field.
        """
        try:
            return cls.parse(body), ()
        except InvalidSpecError:
            known_fields, paths = _drop_unknown_fields(cls, body)
            if not paths:
                raise
            return cls.parse(known_fields), paths


NEVER_IGNORED_FIELDS: Final = frozenset({"auth", "match"})
"""Fields of a spec that restrict which requests pass: unknown fields within them are never ignored."""


def _drop_unknown_fields(
    kind: type[CustomResource], body: Mapping[str, object]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a copy of `body` without the unknown fields of its spec, and the paths of these fields."""
    copy: dict[str, Any] = deepcopy({**body, "status": {}})
    paths: list[str] = []
    try:
        kind.model_validate(copy)
    except ValidationError as error:
        for detail in _list_errors(error):
            location = detail["loc"]
            if detail["type"] != "extra_forbidden" or NEVER_IGNORED_FIELDS & {*location}:
                continue
            parent: Any = copy
            try:
                for step in location[:-1]:
                    parent = parent[step]
                del parent[location[-1]]
            except (LookupError, TypeError):
                continue  # The path contains the type of a union, which is no key: keep the field, so that parsing fails.
            paths.append(format_field_path(location))
    return {**copy, "status": body.get("status") or {}}, tuple(paths)


def _list_errors(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_input=False)


def _to_invalid_spec_error(errors: Sequence[ErrorDetails]) -> InvalidSpecError:
    """Convert pydantic's errors: the fields' paths as kubectl prints them, and the messages."""
    problems = [_describe_field(error) for error in errors]
    path, message = problems[0]
    further = [f"{path}: {message}" if path else message for path, message in problems[1:]]
    return InvalidSpecError(message, path=path, further_problems=further)


def _describe_field(error: ErrorDetails) -> tuple[str, str]:
    """Return the path of an invalid field and what is wrong with it."""
    broken = error.get("ctx", {}).get("error")
    location = (
        (*error["loc"], broken.field)
        if isinstance(broken, BrokenRuleError) and broken.field
        else error["loc"]
    )
    return format_field_path(location), error["msg"].removeprefix("Value error, ")


def format_field_path(location: Sequence[int | str]) -> str:
    """Format ('spec', 'routes', 0, 'timeout') as spec.routes[0].timeout."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")
