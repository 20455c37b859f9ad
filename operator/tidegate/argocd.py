"""Argo CD's health checks and actions for our kinds, as entries of its ConfigMap argocd-cm."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from tidegate.api.compute_pool import ComputePool, PolicyMode
from tidegate.api.crd import KIND_DEFINITIONS
from tidegate.api.meta import GROUP
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import RELEASE_ANNOTATION
from tidegate.api.release_commands import ReleaseCommand

_PREFIX: Final = "resource.customizations"
_CONDITIONS_HEALTH: Final = "return standing()\n"
"""Health of a kind that depends on its conditions alone."""
_CLEAR_ACTION: Final = "clear"
_MODE_OF_ACTION: Final = f"{GROUP}/mode-of-action"
"""Annotation with the mode that an action set; it is not the effective mode once git or a person sets another one."""
_MODE_BEFORE_ACTION: Final = f"{GROUP}/mode-before-action"
"""Annotation with the effective mode before the first of these actions, to which `resume` goes back."""


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
    for kind, definitions in _ACTIONS.items():
        discovery = (scripts / "actions" / f"{kind}.lua").read_text()
        entry = {
            "discovery.lua": _LiteralText(discovery),
            "definitions": [
                {"name": name, "action.lua": _LiteralText(script)} for name, script in definitions.items()
            ],
        }
        data[f"{_PREFIX}.actions.{GROUP}_{kind}"] = _LiteralText(_dump_yaml(entry))
    return _dump_yaml({"data": data})


def _render_annotation_script(command: str) -> str:
    """Return Lua that sets the annotation as `tidegate release` does.

    Clearing sets an empty value instead of removing the key: Argo CD ignores a change that leaves an empty table.
    """
    return (
        "obj.metadata.annotations = obj.metadata.annotations or {}\n"
        f'obj.metadata.annotations["{RELEASE_ANNOTATION}"] = "{command}"\n'
        "return obj\n"
    )


def _render_mode_script(mode: PolicyMode) -> str:
    """Return Lua that sets a pool's mode, and records the mode before the first action."""
    return (
        "local annotations = obj.metadata.annotations or {}\n"
        "obj.spec.policy = obj.spec.policy or {}\n"
        f'local mode = obj.spec.policy.mode or "{PolicyMode.RECOMMEND_ONLY}"\n'
        f'if annotations["{_MODE_OF_ACTION}"] ~= mode then\n'
        f'  annotations["{_MODE_BEFORE_ACTION}"] = mode\n'
        "end\n"
        f'annotations["{_MODE_OF_ACTION}"] = "{mode}"\n'
        f'obj.spec.policy.mode = "{mode}"\n'
        "obj.metadata.annotations = annotations\n"
        "return obj\n"
    )


_RESUME_SCRIPT: Final = (
    f'obj.spec.policy.mode = obj.metadata.annotations["{_MODE_BEFORE_ACTION}"]\n'
    f'obj.metadata.annotations["{_MODE_OF_ACTION}"] = ""\n'
    f'obj.metadata.annotations["{_MODE_BEFORE_ACTION}"] = ""\n'
    "return obj\n"
)
_ACTIONS: Final[dict[str, dict[str, str]]] = {
    ModelAccess.KIND: {
        **{command.value: _render_annotation_script(command.value) for command in ReleaseCommand},
        _CLEAR_ACTION: _render_annotation_script(""),
    },
    ComputePool.KIND: {
        "hold": _render_mode_script(PolicyMode.HOLD),
        "recommend-only": _render_mode_script(PolicyMode.RECOMMEND_ONLY),
        "resume": _RESUME_SCRIPT,
    },
}
"""Lua of each action, by kind and name."""


def _dump_yaml(content: dict[str, Any]) -> str:
    return yaml.dump(content, Dumper=_LiteralDumper, sort_keys=False, allow_unicode=True, width=200)
