"""What Argo CD has to know of our kinds, as the entries of its ConfigMap argocd-cm: how their health is read, and what can be done with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from tidegate.api.crd import DEFINITIONS
from tidegate.api.meta import GROUP
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import RELEASE_ANNOTATION, ReleaseCommand

_PREFIX: Final = "resource.customizations"
_BY_CONDITIONS: Final = "return standing()\n"
"""The health of a kind that has nothing to add to its conditions."""
_CLEAR: Final = "clear"


class _Literal(str):
    """A text that YAML writes line by line."""


class _Dumper(yaml.SafeDumper):
    """Writes literals as they are read."""


_Dumper.add_representer(
    _Literal, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
)


def customizations(scripts: Path) -> str:
    """The ConfigMap argocd-cm with our entries alone, from the Lua below `scripts`: what `kubectl patch --patch-file` takes."""
    common = (scripts / "health" / "conditions.lua").read_text()
    data: dict[str, Any] = {}
    for kind in (definition.resource.KIND for definition in DEFINITIONS):
        own = scripts / "health" / f"{kind}.lua"
        text = own.read_text() if own.exists() else _BY_CONDITIONS
        data[f"{_PREFIX}.health.{GROUP}_{kind}"] = _Literal(f"{common}\n{text}")
    discovery = (scripts / "actions" / f"{ModelAccess.KIND}.lua").read_text()
    data[f"{_PREFIX}.actions.{GROUP}_{ModelAccess.KIND}"] = _Literal(_dumped(_actions(discovery)))
    return _dumped({"data": data})


def _actions(discovery: str) -> dict[str, Any]:
    commands = [
        {"name": each.value, "action.lua": _Literal(_annotating(each.value))} for each in ReleaseCommand
    ]
    cleared = {"name": _CLEAR, "action.lua": _Literal(_annotating(""))}
    return {"discovery.lua": _Literal(discovery), "definitions": [*commands, cleared]}


def _annotating(command: str) -> str:
    """Lua that writes the annotation as `tidegate release` does.

    Empty is as good as none, and gets through: Argo CD takes the empty table that may be left of annotations for no change.
    """
    return (
        "obj.metadata.annotations = obj.metadata.annotations or {}\n"
        f'obj.metadata.annotations["{RELEASE_ANNOTATION}"] = "{command}"\n'
        "return obj\n"
    )


def _dumped(content: dict[str, Any]) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=200)
