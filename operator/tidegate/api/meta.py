"""What every kind has: its name, its metadata, and one way to be parsed."""

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

from tidegate.api.schema import BrokenRuleError, Rule, with_rules
from tidegate.errors import InvalidSpecError

GROUP: Final = "tidegate.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

NOT_OBSERVED: Final = -1
"""No object has this generation, so that whoever waits for one that nobody has looked at yet goes on waiting."""

ObservedGeneration = Annotated[
    int,
    Field(
        ge=NOT_OBSERVED,
        description="The metadata.generation that this status is about; -1 until the controllers have looked at the object.",
    ),
]

# A name becomes a label value and part of a host name and of a Service's name, so it must be a DNS label.
DNS_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"

_DNS_LABEL: Final = re.compile(DNS_LABEL)
_MAX_VALUE_SHOWN: Final = 80


@dataclass(frozen=True, slots=True, order=True)
class ObjectKey:
    """Where an object lives: its namespace (empty for cluster-wide kinds) and its name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `namespace/name`, or `name` alone for a cluster-wide object.

        Raises ValueError when a part is empty or there are more than two.
        """
        namespace, slash, name = text.rpartition("/")
        if not name or "/" in namespace or (slash and not namespace):
            message = f"'{text[:_MAX_VALUE_SHOWN]}' does not name an object: use <namespace>/<name>"
            raise ValueError(message)
        return cls(namespace, name)


class ApiModel(BaseModel):
    """Base of every part of a kind: frozen, camelCase outside, unknown fields refused, rules enforced."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        hide_input_in_errors=True,
    )

    RULES: ClassVar[tuple[Rule, ...]] = ()

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
        """As the API spells it: camelCase, absent fields left out, times as RFC 3339."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def share(model: ApiModel, like: ApiModel | None) -> None:
    """Replaces parts of `model` by those of `like` that equal them: what many objects have alike is in memory once.

    Models are frozen, so that nobody can tell.
    """
    if like is None or model is like or type(model) is not type(like):
        return
    for name, value in tuple(model):
        other = getattr(like, name)
        if type(value) is type(other) and value == other:
            _put(model, name, other)
        else:
            for part, alike in _parts(value, other):
                share(part, alike)
    if model.model_fields_set == like.model_fields_set:
        _put(model, "__pydantic_fields_set__", like.model_fields_set)


def _parts(value: object, other: object) -> Iterator[tuple[ApiModel, ApiModel]]:
    """The models in the same place of both: both are models, or lists of them."""
    if isinstance(value, ApiModel) and isinstance(other, ApiModel):
        yield value, other
    elif isinstance(value, tuple) and isinstance(other, tuple):
        pairs = zip(cast("tuple[object, ...]", value), cast("tuple[object, ...]", other), strict=False)
        for one, another in pairs:
            yield from _parts(one, another)


def _put(model: ApiModel, name: str, value: object) -> None:
    """Past the model's own check that nothing of it changes: nothing does."""
    object.__setattr__(model, name, value)


class StatusModel(ApiModel):
    """Base of what we write into a status: fields of a newer or older operator are ignored."""

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


class Resource(ApiModel):
    """One object of a kind, parsed once where it enters; inside, nobody reads its dictionary."""

    model_config = ConfigDict(extra="ignore")

    KIND: ClassVar[str] = ""
    PLURAL: ClassVar[str] = ""
    NAMESPACED: ClassVar[bool] = True
    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
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
        """Its namespace and name."""
        return ObjectKey(self.metadata.namespace, self.metadata.name)

    @classmethod
    def parse(cls, body: Mapping[str, object]) -> Self:
        """The object behind `body`, with every default filled in.

        A status that does not parse (somebody forged it) counts as empty: it is ours to write again.
        Raises InvalidSpecError that names the first wrong field.
        """
        fields = dict(body)
        try:
            return cls.model_validate(fields)
        except ValidationError as exc:
            errors = [error for error in _details(exc) if error["loc"][:1] != ("status",)]
            if errors:
                raise _invalid_spec(errors) from exc
        return cls.model_validate({**fields, "status": {}})

    @classmethod
    def parse_known(cls, body: Mapping[str, object]) -> tuple[Self, tuple[str, ...]]:
        """The object behind `body` without the fields of its spec that only a newer version knows, and the paths of these.

        For readers on the way of traffic, which must not drop an object since it says more than they understand. Within `auth` and
        `match` nothing is left out: that would let in whom the newer version refuses.
        Raises InvalidSpecError when that is so, or anything else is wrong.
        """
        try:
            return cls.parse(body), ()
        except InvalidSpecError:
            known, paths = _without_unknown(cls, body)
            if not paths:
                raise
            return cls.parse(known), paths


NEVER_IGNORED: Final = frozenset({"auth", "match"})
"""Fields of a spec in which one that narrows who is let in, or what is chosen, has to be: an older version does not ignore it there."""


def _without_unknown(
    kind: type[Resource], body: Mapping[str, object]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A copy of `body` without what is unknown of its spec, and where that was."""
    copy: dict[str, Any] = deepcopy({**body, "status": {}})
    paths: list[str] = []
    try:
        kind.model_validate(copy)
    except ValidationError as error:
        for each in _details(error):
            location = each["loc"]
            if each["type"] != "extra_forbidden" or NEVER_IGNORED & {*location}:
                continue
            parent: Any = copy
            try:
                for step in location[:-1]:
                    parent = parent[step]
                del parent[location[-1]]
            except (LookupError, TypeError):
                continue  # a path through a choice of types names these too: then it stays, and the object unread
            paths.append(field_path(location))
    return {**copy, "status": body.get("status") or {}}, tuple(paths)


def _details(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_input=False)


def _invalid_spec(errors: Sequence[ErrorDetails]) -> InvalidSpecError:
    """The first of pydantic's errors as ours: the field's path as kubectl prints it, and what is wrong."""
    first = errors[0]
    broken = first.get("ctx", {}).get("error")
    location = (
        (*first["loc"], broken.field)
        if isinstance(broken, BrokenRuleError) and broken.field
        else first["loc"]
    )
    message = first["msg"].removeprefix("Value error, ")
    if len(errors) > 1:
        message += f" (and {len(errors) - 1} more)"
    return InvalidSpecError(message, path=field_path(location))


def field_path(location: Sequence[int | str]) -> str:
    """('spec', 'routes', 0, 'timeout') as spec.routes[0].timeout."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")
