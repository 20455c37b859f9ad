"""Argo CD's health checks and actions for our kinds, as entries of its ConfigMap argocd-cm."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from tidegate.api.crd import KIND_DEFINITIONS
from tidegate.api.meta import GROUP
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import RELEASE_ANNOTATION
from tidegate.api.release_commands import ReleaseCommand

_PREFIX: Final = "resource.customizations"
_CONDITIONS_HEALTH: Final = "return standing()\n"
"""Health of a kind that depends on its conditions alone."""
_CLEAR_ACTION: Final = "clear"


class _LiteralText(str):
    """A text that YAML dumps as a literal block."""


class _LiteralDumper(yaml.SafeDumper):
    """Dumps literals as blocks."""


_LiteralDumper.add_representer(
    _LiteralText, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
)


def render_argocd_config(scripts: Path) -> str:
    """Render our entries of argocd-cm from the Lua scripts in `scripts`, as a file for `kubectl patch --patch-file`."""
    common = (scripts / "health" / "conditions.lua").read_text()
    data: dict[str, Any] = {}
    for kind in (definition.resource.KIND for definition in KIND_DEFINITIONS):
        own = scripts / "health" / f"{kind}.lua"
        text = own.read_text() if own.exists() else _CONDITIONS_HEALTH
        data[f"{_PREFIX}.health.{GROUP}_{kind}"] = _LiteralText(f"{common}\n{text}")
    discovery = (scripts / "actions" / f"{ModelAccess.KIND}.lua").read_text()
    data[f"{_PREFIX}.actions.{GROUP}_{ModelAccess.KIND}"] = _LiteralText(
        _dump_yaml(_build_actions(discovery))
    )
    return _dump_yaml({"data": data})


def _build_actions(discovery: str) -> dict[str, Any]:
    commands = [
        {"name": command.value, "action.lua": _LiteralText(_render_annotation_script(command.value))}
        for command in ReleaseCommand
    ]
    clear = {"name": _CLEAR_ACTION, "action.lua": _LiteralText(_render_annotation_script(""))}
    return {"discovery.lua": _LiteralText(discovery), "definitions": [*commands, clear]}


def _render_annotation_script(command: str) -> str:
    """Return Lua that sets the annotation as `tidegate release` does.

    Clearing sets an empty value instead of removing the key: Argo CD ignores a change that leaves an empty table.
    """
    return (
        "obj.metadata.annotations = obj.metadata.annotations or {}\n"
        f'obj.metadata.annotations["{RELEASE_ANNOTATION}"] = "{command}"\n'
        "return obj\n"
    )


def _dump_yaml(content: dict[str, Any]) -> str:
    return yaml.dump(content, Dumper=_LiteralDumper, sort_keys=False, allow_unicode=True, width=200)
