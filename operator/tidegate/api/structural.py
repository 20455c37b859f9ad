"""Turns a model into the structural OpenAPI v3 schema that a CRD must carry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tidegate.api.meta import API_VERSION, NOT_OBSERVED, Resource

# JSON Schema that pydantic writes and a structural schema must not have, or does not need.
_DROPPED: Final = ("title", "additionalProperties", "$defs", "uniqueItems")

# Written in this order, so that a reader meets what a field is before how it is checked.
_ORDER: Final = ("description", "type", "format", "default", "enum", "required", "properties", "items")


def structural(resource: type[Resource]) -> dict[str, Any]:
    """The schema of a whole object: apiVersion, kind, metadata, spec and status.

    References are written out, 'or null' becomes optional, docstrings give way to the fields' own descriptions,
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
            "spec": _Writer(definitions).write(fields["spec"]),
            "status": _waited_for(_Writer(definitions, answers=True).write(fields["status"])),
        },
    }
    if rules := schema.get("x-kubernetes-validations"):
        result["x-kubernetes-validations"] = rules
    return result


def _waited_for(status: dict[str, Any]) -> dict[str, Any]:
    """`status`, where the API server itself says of a new object that nobody has looked at it: without that, kstatus calls it done."""
    properties = status["properties"]
    if "observedGeneration" not in properties:
        return status
    observed = _ordered({**properties["observedGeneration"], "default": NOT_OBSERVED})
    return _ordered({**status, "default": {}, "properties": {**properties, "observedGeneration": observed}})


class _Writer:
    """Writes one tree of JSON Schema. `answers`: it is a status, where defaults would be claims nobody made."""

    def __init__(self, definitions: Mapping[str, Any], *, answers: bool = False) -> None:
        self._definitions = definitions
        self._answers = answers

    def write(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The structural form of `schema`."""
        node = self._resolve(schema)
        values = node.get("additionalProperties")
        for name in _DROPPED:
            node.pop(name, None)
        if self._answers:
            node.pop("default", None)
        if isinstance(values, dict):
            node["additionalProperties"] = self.write(values)
        elif node.get("type") == "object":
            node["properties"] = {
                name: self.write(child) for name, child in node.get("properties", {}).items()
            }
        if "items" in node:
            node["items"] = self.write(node["items"])
        if "default" in node:
            _describe_default(node)
        return _ordered(node)

    def _resolve(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """`schema` without references and without null; what stands beside them wins over what they lead to."""
        outer = dict(schema)
        if "$ref" in outer:
            target = self._definitions[str(outer.pop("$ref")).rpartition("/")[2]]
            return {**self._resolve(target), **outer}
        if "anyOf" in outer:
            inner = next(option for option in outer.pop("anyOf") if option.get("type") != "null")
            if outer.get("default", 0) is None:
                del outer["default"]
            return {**self._resolve(inner), **outer}
        return outer


def _describe_default(node: dict[str, Any]) -> None:
    """Puts the default into the description, where `kubectl explain` shows it; objects are too long for that."""
    default = node["default"]
    if isinstance(default, dict):
        node["default"] = {}
        return
    if default == []:
        del node["default"]
        return
    shown = default if isinstance(default, str) else json.dumps(default)
    node["description"] = f"{node.get('description', '')} Default: {shown}.".strip()


def _ordered(node: Mapping[str, Any]) -> dict[str, Any]:
    return {name: node[name] for name in sorted(node, key=_position)}


def _position(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)
