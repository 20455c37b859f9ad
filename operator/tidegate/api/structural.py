"""Structural OpenAPI v3 schemas of our kinds, as CRDs require them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tidegate.api.meta import API_VERSION, NOT_OBSERVED, CustomResource

# Keys of pydantic's JSON Schema that a structural schema must not have, or does not need.
_DROPPED_KEYS: Final = ("title", "additionalProperties", "$defs", "uniqueItems")

# The description of a field comes before its validation, for readers.
_KEY_ORDER: Final = ("description", "type", "format", "default", "enum", "required", "properties", "items")


def build_structural_schema(resource: type[CustomResource]) -> dict[str, Any]:
    """Return the schema of a whole object: apiVersion, kind, metadata, spec and status.

    References are resolved, 'or null' becomes optional, descriptions of fields replace docstrings,
    and each description ends with the default.
    """
    schema = resource.model_json_schema(by_alias=True, mode="validation")
    definitions: Mapping[str, Any] = schema["$defs"]
    fields = schema["properties"]
    result: dict[str, Any] = {
        "description": resource.__doc__,
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{API_VERSION}."},
            "kind": {"type": "string", "description": f"{resource.KIND}."},
            "metadata": {"type": "object"},
            "spec": _SchemaWriter(definitions).write_schema(fields["spec"]),
            "status": _with_observed_default(
                _SchemaWriter(definitions, is_status=True).write_schema(fields["status"])
            ),
        },
    }
    if rules := schema.get("x-kubernetes-validations"):
        result["x-kubernetes-validations"] = rules
    return result


def _with_observed_default(status: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a status whose observedGeneration defaults to NOT_OBSERVED.

    The API server then sets it in new objects; without it, kstatus would consider them reconciled.
    """
    properties = status["properties"]
    if "observedGeneration" not in properties:
        return status
    observed = _sort_keys({**properties["observedGeneration"], "default": NOT_OBSERVED})
    return _sort_keys({**status, "default": {}, "properties": {**properties, "observedGeneration": observed}})


class _SchemaWriter:
    """Writer of one schema. With `answers` it is a status, whose defaults are dropped: they would be false claims."""

    def __init__(self, definitions: Mapping[str, Any], *, is_status: bool = False) -> None:
        self._definitions = definitions
        self._is_status = is_status

    def write_schema(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the structural form of `schema`."""
        node = self._resolve_references(schema)
        values = node.get("additionalProperties")
        for name in _DROPPED_KEYS:
            node.pop(name, None)
        if self._is_status:
            node.pop("default", None)
        if isinstance(values, dict):
            node["additionalProperties"] = self.write_schema(values)
        elif node.get("type") == "object":
            node["properties"] = {
                name: self.write_schema(child) for name, child in node.get("properties", {}).items()
            }
        if "items" in node:
            node["items"] = self.write_schema(node["items"])
        if "default" in node:
            _describe_default(node)
        return _sort_keys(node)

    def _resolve_references(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return `schema` without references and without null; keys next to a reference override its target."""
        outer = dict(schema)
        if "$ref" in outer:
            target = self._definitions[str(outer.pop("$ref")).rpartition("/")[2]]
            return {**self._resolve_references(target), **outer}
        if "anyOf" in outer:
            inner = next(variant for variant in outer.pop("anyOf") if variant.get("type") != "null")
            if outer.get("default", 0) is None:
                del outer["default"]
            return {**self._resolve_references(inner), **outer}
        return outer


def _describe_default(node: dict[str, Any]) -> None:
    """Append the default to the description for `kubectl explain`, except defaults that are objects."""
    default = node["default"]
    if isinstance(default, dict):
        node["default"] = {}
        return
    if default == []:
        del node["default"]
        return
    text = default if isinstance(default, str) else json.dumps(default)
    node["description"] = f"{node.get('description', '')} Default: {text}.".strip()


def _sort_keys(node: Mapping[str, Any]) -> dict[str, Any]:
    return {name: node[name] for name in sorted(node, key=_key_position)}


def _key_position(name: str) -> tuple[int, str]:
    return (_KEY_ORDER.index(name) if name in _KEY_ORDER else len(_KEY_ORDER), name)
