"""What a command of kubectl is about, as far as it is ours: its resources, the fields that it reads, what it patches."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from documented.shell import Command
from tidegate.api.conditions import ConditionType
from tidegate.api.crd import KIND_DEFINITIONS
from tidegate.api.structural import build_structural_schema

_WITH_VALUE = frozenset(
    {"-n", "--namespace", "-o", "-l", "-p", "-f", "-c", "--field-selector", "--context", "--kubeconfig"}
)
_OF_RESOURCES = frozenset(
    {"annotate", "delete", "describe", "explain", "get", "label", "patch", "scale", "taint", "wait"}
)
_CONDITION = re.compile(r'\.conditions\[\?\(@\.type=="(\w+)"\)\]')
_FIELD = re.compile(r"\{((?:\.\w+)+)")
KINDS: Mapping[str, Any] = {
    name: schema
    for definition in KIND_DEFINITIONS
    for schema in (build_structural_schema(definition.resource),)
    for name in (definition.resource.PLURAL, definition.resource.KIND.lower(), definition.short_name)
}
"""The schemas of our kinds, by each name that kubectl takes."""


@dataclass(frozen=True)
class Asked:
    """A command of kubectl, taken apart."""

    command: Command
    arguments: tuple[str, ...]
    """Without the program."""

    @property
    def positional(self) -> list[str]:
        """Verb, resource and names."""
        found, words = [], iter(self.arguments)
        for word in words:
            if word in _WITH_VALUE:
                next(words, "")
            elif not word.startswith("-"):
                found.append(word)
        return found

    @property
    def resources(self) -> list[str]:
        """The kinds that it names, as it names them."""
        verb, *rest = self.positional
        if verb not in _OF_RESOURCES or not rest or self.option("-f"):
            return []
        named = (
            [each.partition("/")[0] for each in rest if "/" in each] if "/" in rest[0] else rest[0].split(",")
        )
        return [each.partition(".")[0] if verb == "explain" else each for each in named]

    def option(self, *names: str) -> str:
        """The value of an option, however it is written."""
        for index, word in enumerate(self.arguments):
            for name in names:
                if word == name and index + 1 < len(self.arguments):
                    return self.arguments[index + 1]
                if word.startswith(f"{name}="):
                    return word.partition("=")[2]
        return ""

    def files(self) -> tuple[str, ...]:
        """The files whose objects or patches it sends; not what another command pipes into it, nor what lies on a server."""
        named = (
            self.option(*names) for names in (("-f", "--filename"), ("-k", "--kustomize"), ("--patch-file",))
        )
        return tuple(each for each in named if each and each != "-" and "://" not in each)

    def unknown_fields(self) -> Iterator[str]:
        """Conditions and fields that it reads and that none of its kinds has."""
        schemas = [KINDS[name] for name in self.resources if name in KINDS]
        wanted = self.option("--for")
        if wanted.startswith("condition=") and schemas:
            yield from _unknown_condition(wanted.removeprefix("condition=").partition("=")[0])
        for path in filter(None, [self.option("-o", "--output"), wanted]):
            if "jsonpath=" not in path or not schemas:
                continue
            for condition in _CONDITION.findall(path):
                yield from _unknown_condition(condition)
            for field in _FIELD.findall(path):
                if field.startswith((".status", ".spec")) and not any(_has(each, field) for each in schemas):
                    yield field

    def explained(self) -> str:
        """The path that `kubectl explain` is asked for."""
        return self.positional[1] if self.positional[0] == "explain" else ""

    def patch(self) -> Any:
        """What a merge patch of one of our kinds writes; None where it is no such thing."""
        positional = self.positional
        if positional[0] != "patch" or positional[1] not in KINDS or self.option("--type") != "merge":
            return None
        return json.loads(self.option("-p", "--patch"))


def asked(command: Command) -> Asked | None:
    """A command that kubectl gets, also by way of the local cluster; None for all others."""
    words = command.words
    if words[0] == "kubectl" and words[1:2] != ("tidegate",):
        return Asked(command, words[1:])
    if words[1:3] == ("local", "kubectl"):
        return Asked(command, words[3:])
    return None


def _unknown_condition(name: str) -> Iterator[str]:
    if name not in {each.value for each in ConditionType}:
        yield f"condition {name}"


def _has(schema: Mapping[str, Any], path: str) -> bool:
    node: Any = schema
    for name in path.strip(".").split("."):
        node = node.get("items", node).get("properties", {}).get(name)
        if node is None:
            return False
    return True
