"""What pages have people type and apply is taken by the real kubectl, Helm and API server."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from builders.compute_pool import compute_pool_body
from builders.inference import inference_body
from builders.model_access import model_access_body
from documented.kubectl import Asked, asked
from documented.manifests import Body, manifests, parts, values
from documented.pages import ROOT, Block, blocks, inline
from documented.shell import Command, aliases, commands
from fixtures.control_plane import Kubectl
from tidegate.api.crd import KIND_DEFINITIONS

pytestmark = [pytest.mark.usefixtures("crds")]

NOT_HERE = frozenset({"cert-manager.io/v1", "kustomize.toolkit.fluxcd.io/v1", "argoproj.io/v1alpha1"})
"""Kinds of others that the tests' API server does not know."""
CLUSTER_KINDS = frozenset(
    definition.resource.KIND for definition in KIND_DEFINITIONS if not definition.resource.NAMESPACED
)
BODIES = {"inference": inference_body, "modelaccess": model_access_body, "computepool": compute_pool_body}
WITH_VERBS_BELOW = frozenset({"auth", "config", "create", "rollout", "set"})


def _typed() -> list[Command]:
    typed = blocks("console", "shell", "bash", "sh")
    names = {alias: meant for block in typed for alias, meant in aliases(block).items()}
    return [command for block in typed for command in commands(block, names) if "TAB" not in block.text]


def _mentioned() -> list[Command]:
    """Within sentences; those that leave something out are no whole commands."""
    return [
        command
        for page, code in inline(but=frozenset({"docs/reference/commands.md"}))
        if code.startswith("kubectl ") and code.count(" ") > 1 and not {*code} & {*"…<|"}
        for command in commands(Block(page, "shell", code))
    ]


TYPED = _typed()
KUBECTLS = [found for command in [*TYPED, *_mentioned()] if (found := asked(command)) and found.arguments]
HELMS = [command for command in TYPED if command.words[0] == "helm"]


def judged(kubectl: Asked) -> tuple[str, ...]:
    """The words that `--help` checks: verbs and options, with values that kubectl parses."""
    verbs = kubectl.positional[: 3 if kubectl.positional[0] in WITH_VERBS_BELOW else 1]
    return (*verbs, *sorted({word for word in kubectl.arguments if word.startswith("-")}))


def refused_options(typed: Asked, kubectl: Kubectl) -> str:
    """Return what kubectl says of a command's options."""
    verb, helped = typed.positional[0], _run(kubectl.binary, *typed.arguments, "--help")
    if helped.returncode != 0 or f"kubectl {verb}" not in helped.stdout:
        return helped.stderr.strip() or f"kubectl has no {verb}"
    return ""


def unknown_words(typed: Asked, kubectl: Kubectl, known: frozenset[str]) -> str:
    """Name the resources and fields of a command that do not exist."""
    unknown = [name for name in typed.resources if name.lower() not in known]
    unknown += typed.unknown_fields()
    if typed.explained():
        done = kubectl.run("explain", typed.explained())
        unknown += [done.stderr.strip()] if done.returncode else []
    return f"there is no {', '.join(unknown)}" if unknown else ""


def test_kubectl_takes_every_command(kubectl: Kubectl) -> None:
    rows = [line.split() for line in kubectl("api-resources", "--no-headers").splitlines()]
    known = frozenset(name.lower() for row in rows for name in (*row[:-3], row[-1], *row[1].split(",")))
    distinct = {judged(typed): typed for typed in KUBECTLS}
    problems = {str(typed.command): refused_options(typed, kubectl) for typed in distinct.values()}
    problems |= {
        str(typed.command): said for typed in KUBECTLS if (said := unknown_words(typed, kubectl, known))
    }
    assert len(problems) > 50
    assert {words: said for words, said in problems.items() if said} == {}


def warned(kubectl: Kubectl, namespace: str, typed: Asked) -> str:
    """Return what the API server says of a patch of the page's object, or of the least valid one."""
    _, kind, name = typed.positional
    on_page = [
        body
        for where, body in manifests()
        if where.partition(":")[0] == _page(typed.command)
        and (body["kind"].lower(), body["metadata"]["name"]) == (kind, name)
    ]
    body = (on_page or [BODIES[kind]()])[0]
    sent = json.dumps({**body, "metadata": {"name": name, "namespace": namespace}})
    kubectl("apply", "--filename=-", stdin=sent)
    patch = ("--type=merge", "-p", json.dumps(typed.patch()), "--dry-run=server")
    return kubectl.run("patch", kind, name, "-n", namespace, *patch).stderr


def test_the_api_server_takes_every_patch(kubectl: Kubectl, namespace: str) -> None:
    patches = [typed for typed in KUBECTLS if typed.patch()]
    assert patches
    said = {str(typed.command): warned(kubectl, namespace, typed) for typed in patches}
    assert {words: warning for words, warning in said.items() if warning} == {}


def refused(kubectl: Kubectl, body: Body) -> str:
    """Return what the API server says of an object; nothing where it takes it."""
    place = {} if body["kind"] in CLUSTER_KINDS else {"namespace": "default"}
    meta = {key: body["metadata"][key] for key in ("name", "labels") if key in body["metadata"]}
    sent = json.dumps({**body, "metadata": {**meta, **place}})
    command = ("create", "--dry-run=server", "--validate=strict", "--filename=-")
    return kubectl.run(*command, stdin=sent).stderr


def test_the_api_server_takes_what_is_applied(kubectl: Kubectl) -> None:
    applied = [(where, body) for where, body in manifests() if body["apiVersion"] not in NOT_HERE]
    applied += [(part.where, part.whole()) for part in parts()]
    assert len(applied) > 30
    said = {f"{where} {body['kind']}": refused(kubectl, body) for where, body in applied}
    assert {where: refusal for where, refusal in said.items() if refusal} == {}


def helm_says(helm: Path, command: Command) -> str:
    """Return what Helm says of a command's options and values; nothing where it takes all."""
    arguments = command.words[1:]
    helped = _run(helm, *arguments, "--help")
    if helped.returncode != 0 or f"helm {arguments[0]}" not in helped.stdout:
        return helped.stderr or f"helm has no {arguments[0]}"
    chart = next((word for word in arguments if word.startswith("charts/")), "")
    if not chart:
        return ""
    rendered = _run(helm, "template", "tidegate", chart, *_set_before(command), *_set_by(command))
    return rendered.stderr if rendered.returncode else ""


def _set_by(command: Command) -> list[str]:
    return [word for before, word in pairwise(("", *command.words, "")) if "--set" in (before, word)]


def _set_before(command: Command) -> list[str]:
    """What the page has set before, where the command goes on from it."""
    if not {"--reuse-values", "--reset-then-reuse-values"} & {*command.words}:
        return []
    same = [earlier for earlier in HELMS if _page(earlier) == _page(command)]
    return [word for earlier in same[: same.index(command)] for word in _set_by(earlier)]


def _page(command: Command) -> str:
    return command.where.partition(":")[0]


def _run(program: Path, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [program, *arguments]
    return subprocess.run(
        command, cwd=ROOT, input=stdin, capture_output=True, text=True, check=False, timeout=120
    )


def test_helm_takes_every_command(helm: Path) -> None:
    assert HELMS
    distinct = {(command.words, *_set_before(command)): command for command in HELMS}
    said = {str(command): helm_says(helm, command) for command in distinct.values()}
    assert {words: refusal for words, refusal in said.items() if refusal} == {}


def test_the_chart_takes_what_pages_give_as_its_values(helm: Path) -> None:
    for block in values():
        done = _run(helm, "template", "tidegate", "charts/tidegate", "--values=-", stdin=block.text)
        assert done.returncode == 0, f"{block.where}: {done.stderr}"
