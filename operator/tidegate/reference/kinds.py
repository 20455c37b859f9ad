"""docs/reference/kinds/: a page per kind with the fields, types, defaults, rules and meanings of its CRD."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.crd import KIND_DEFINITIONS, KindDefinition, build_crd
from tidegate.api.meta import API_VERSION
from tidegate.reference.markdown import escape_text, format_code, render_notice, render_table

_NOTICE: Final = render_notice("operator/tidegate/api/")
_VALIDATIONS_KEY: Final = "x-kubernetes-validations"
_BOUNDS: Final = (
    ("minimum", "maximum", ""),
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"),
    ("minProperties", "maxProperties", " entries"),
)
_INDEX: Final = f"""{_NOTICE}# Kinds

All are of `{API_VERSION}`; `kubectl explain` shows the same for the CRDs of a cluster.
kubectl's strict validation rejects a field that is not listed; one without a default may be left out unless it is required.

"""


def render_kind_pages() -> Mapping[str, str]:
    """Render docs/reference/kinds/: an index and a page per kind, by file name."""
    pages = {
        f"{definition.resource.KIND.lower()}.md": _render_page(definition) for definition in KIND_DEFINITIONS
    }
    return {"README.md": _INDEX + _render_index(), **pages}


@dataclass(frozen=True, slots=True)
class _SchemaField:
    """A field of a schema, with its path from the object."""

    path: str
    schema: Mapping[str, Any]
    required: bool

    def to_row(self, *, in_spec: bool) -> tuple[str, ...]:
        """Return the row of the field; with `asks`, a field of a spec, with its default and rules."""
        meaning = escape_text(self._strip_default())
        if not in_spec:
            return (format_code(self.path), _format_type(self.schema), meaning)
        rules = "".join(f"<br>{rule}" for rule in _format_rules(self.schema))
        text = (meaning + rules).removeprefix("<br>")
        return (format_code(self.path), _format_type(self.schema), self._format_default(), text)

    def _format_default(self) -> str:
        if self.required:
            return "required"
        default = self.schema.get("default")
        if default is None or default == {}:
            return ""
        return format_code(str(default).lower() if isinstance(default, bool) else default)

    def _strip_default(self) -> str:
        description = str(self.schema.get("description", ""))
        text, separator, _ = description.rpartition(" Default: ")
        # The description does not contain a default that is an object.
        return text if separator and "default" in self.schema else description


def _render_index() -> str:
    rows = []
    for definition in KIND_DEFINITIONS:
        kind = definition.resource
        link = f"[{kind.KIND}]({kind.KIND.lower()}.md)"
        scope = "a namespace" if kind.NAMESPACED else "the cluster"
        rows.append((link, format_code(definition.short_name), scope, escape_text(kind.__doc__ or "")))
    return render_table(("kind", "short", "of", "what it is"), rows)


def _render_page(definition: KindDefinition) -> str:
    kind = definition.resource
    version = build_crd(definition)["spec"]["versions"][0]
    schema: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]
    fields = {part: list(_walk_fields(schema["properties"][part], part)) for part in ("spec", "status")}
    columns = render_table(
        ("column", "shows", "with"),
        [
            (column.name, escape_text(column.description), format_code("-o wide") if column.wide else "")
            for column in definition.columns
        ],
    )
    lines = [f"- {rule}\n" for part in (schema, schema["properties"]["spec"]) for rule in _format_rules(part)]
    rules = "\n## Rules between fields\n\n" + "".join(lines) if lines else ""
    return (
        f"{_NOTICE}# {kind.KIND}\n\n{escape_text(schema['description'])}\n\n"
        f"`kubectl get {definition.short_name}` lists them; [all kinds](README.md).\n\n"
        "## Spec\n\n"
        + render_table(
            ("field", "type", "default", "meaning"), [field.to_row(in_spec=True) for field in fields["spec"]]
        )
        + rules
        + "\n## Status\n\n"
        + render_table(
            ("field", "type", "meaning"), [field.to_row(in_spec=False) for field in fields["status"]]
        )
        + f"\n## Columns\n\n{columns}"
    )


def _walk_fields(schema: Mapping[str, Any], path: str) -> Iterator[_SchemaField]:
    """Yield the fields below a field, depth first, as `kubectl explain --recursive` does."""
    required = schema.get("required", ())
    for name, child in schema.get("properties", {}).items():
        child_path = f"{path}.{name}"
        yield _SchemaField(child_path, child, required=name in required)
        yield from _walk_fields(child, child_path)
        yield from _walk_fields(child.get("items", {}), f"{child_path}[]")


def _format_type(schema: Mapping[str, Any]) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    match schema.get("type"):
        case "array":
            return f"list of {_format_type(schema['items'])}"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"map of {_format_type(schema['additionalProperties'])}"
        case "string" if schema.get("format") == "date-time":
            return "time"
        case other_type:
            return str(other_type)


def _format_rules(schema: Mapping[str, Any]) -> Iterator[str]:
    if "enum" in schema:
        yield "One of " + ", ".join(format_code(value) for value in schema["enum"]) + "."
    for minimum, maximum, unit in _BOUNDS:
        yield from _format_bounds(schema.get(minimum), schema.get(maximum), unit)
    if "pattern" in schema:
        yield f"Matches {format_code(schema['pattern'])}."
    if keys := schema.get("x-kubernetes-list-map-keys"):
        yield f"Each {format_code(keys[0])} once."
    for rule in schema.get(_VALIDATIONS_KEY, ()):
        field = str(rule.get("fieldPath", "")).removeprefix(".")
        message = escape_text(rule["message"])
        yield f"{format_code(field)}: {message}." if field else f"{message[0].upper()}{message[1:]}."
    if "items" in schema:
        yield from _format_rules(schema["items"])


def _format_bounds(minimum: int | None, maximum: int | None, unit: str) -> Iterator[str]:
    match minimum, maximum:
        case None, None:
            return
        case None, _:
            yield f"At most {maximum}{unit}."
        case _, None:
            yield f"At least {minimum}{unit}."
        case _:
            yield f"{minimum} to {maximum}{unit}."
