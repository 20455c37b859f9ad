"""What pages have people type and apply is taken by the real kubectl, Helm and API server."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from builders.compute_pool import compute_pool_body
from builders.inference import inference_body
from builders.model_access import model_access_body
from documented.kubectl import Asked, asked
from documented.manifests import Body, Part, manifests, parts, values
from documented.pages import ROOT, Block, blocks, blocks_of, inline
from documented.shell import Command, aliases, commands
from fixtures.control_plane import Kubectl
from tidegate.api.crd import DEFINITIONS

pytestmark = [pytest.mark.usefixtures("crds")]

NOT_HERE = frozenset({"cert-manager.io/v1", "kustomize.toolkit.fluxcd.io/v1", "argoproj.io/v1alpha1"})
"""Kinds of others that the tests' API server does not know."""
CLUSTER_KINDS = frozenset(each.resource.KIND for each in DEFINITIONS if not each.resource.NAMESPACED)
BODIES = {"inference": inference_body, "modelaccess": model_access_body, "computepool": compute_pool_body}


def _typed(of: list[Block]) -> list[Command]:
    names = {alias: meant for block in of for alias, meant in aliases(block).items()}
    return [command for block in of for command in commands(block, names) if "TAB" not in block.text]


def _mentioned() -> list[Command]:
    """Within sentences; those that leave something out are no whole commands."""
    return [
        command
        for page, code in inline(but=frozenset({"docs/reference/commands.md"}))
        if code.startswith("kubectl ") and code.count(" ") > 1 and not {*code} & {*"…<|"}
        for command in commands(Block(page, "shell", code))
    ]


def kubectls(typed: list[Command]) -> list[Asked]:
    return [found for command in typed if (found := asked(command)) and found.arguments]


def helms(typed: list[Command]) -> list[Command]:
    return [command for command in typed if command.words[0] == "helm"]


ALL = _typed(blocks("console", "shell", "bash", "sh"))
KUBECTLS = [*kubectls(ALL), *kubectls(_mentioned())]


def words_of(each: Asked | Command) -> str:
    return str(each.command if isinstance(each, Asked) else each)


@pytest.fixture(scope="module")
def resources(kubectl: Kubectl, crds: Path) -> frozenset[str]:
    """Every name by which the API server knows a kind."""
    rows = [line.split() for line in kubectl("api-resources", "--no-headers").splitlines()]
    return frozenset(name.lower() for row in rows for name in (*row[:-3], row[-1], *row[1].split(",")))


WITH_VERBS_BELOW = frozenset({"auth", "config", "create", "rollout", "set"})


def judged(each: Asked) -> tuple[str, ...]:
    """The words of which `--help` says whether they are right: verbs and options, with values that kubectl parses."""
    verbs = each.positional[: 3 if each.positional[0] in WITH_VERBS_BELOW else 1]
    return (*verbs, *sorted({word for word in each.arguments if word.startswith("-")}))


def refused_options(each: Asked, kubectl: Kubectl) -> str:
    """What kubectl says of a command's options."""
    verb, helped = each.positional[0], _run(kubectl.binary, *each.arguments, "--help")
    if helped.returncode != 0 or f"kubectl {verb}" not in helped.stdout:
        return helped.stderr.strip() or f"kubectl has no {verb}"
    return ""


def unknown_words(each: Asked, kubectl: Kubectl, known: frozenset[str]) -> str:
    """What a command's resources and fields lack."""
    unknown = [name for name in each.resources if name.lower() not in known]
    unknown += each.unknown_fields()
    if each.explained():
        done = kubectl.run("explain", each.explained())
        unknown += [done.stderr.strip()] if done.returncode else []
    return f"there is no {', '.join(unknown)}" if unknown else ""


def test_kubectl_takes_every_command(kubectl: Kubectl, resources: frozenset[str]) -> None:
    distinct = {judged(each): each for each in KUBECTLS}
    problems = {words_of(each): refused_options(each, kubectl) for each in distinct.values()}
    problems |= {
        words_of(each): said for each in KUBECTLS if (said := unknown_words(each, kubectl, resources))
    }
    assert {words: said for words, said in problems.items() if said} == {}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("kubectl get inferences --all-namespace", "unknown flag: --all-namespace"),
        ("kubectl gte inferences", "gte"),
        ("kubectl get inferenses", "there is no inferenses"),
        ("kubectl wait inference a --for=condition=Redy", "there is no condition Redy"),
        ("kubectl get mac a -o jsonpath='{.status.relase}'", "there is no .status.relase"),
        ("kubectl explain inference.spec.modell", "modell"),
        ("kubectl get inferences,modelacces", "there is no modelacces"),
    ],
)
def test_what_kubectl_would_not_take_is_found(
    line: str, said: str, kubectl: Kubectl, resources: frozenset[str]
) -> None:
    (each,) = kubectls(_typed([*blocks_of(f"```console\n$ {line}\n```\n", "page")]))
    assert said in (refused_options(each, kubectl) or unknown_words(each, kubectl, resources))


def warned(kubectl: Kubectl, namespace: str, each: Asked) -> str:
    """What the API server says of a patch of the page's object of that name, or of the least that is valid."""
    _, kind, name = each.positional
    on_page = [
        body
        for where, body in manifests()
        if where.partition(":")[0] == _page(each.command)
        and (body["kind"].lower(), body["metadata"]["name"]) == (kind, name)
    ]
    body = (on_page or [BODIES[kind]()])[0]
    sent = json.dumps({**body, "metadata": {"name": name, "namespace": namespace}})
    kubectl("apply", "--filename=-", stdin=sent)
    patch = ("--type=merge", "-p", json.dumps(each.patch()), "--dry-run=server")
    return kubectl.run("patch", kind, name, "-n", namespace, *patch).stderr


@pytest.mark.parametrize("each", [each for each in KUBECTLS if each.patch()], ids=words_of)
def test_the_api_server_takes_a_patch(each: Asked, kubectl: Kubectl, namespace: str) -> None:
    assert warned(kubectl, namespace, each) == ""


@pytest.mark.parametrize(
    ("spec", "said"),
    [('{"reqlicas": 2}', 'unknown field "spec.reqlicas"'), ('{"tier": "fast"}', 'Unsupported value: "fast"')],
)
def test_a_patch_that_it_would_not_take_is_found(
    spec: str, said: str, kubectl: Kubectl, namespace: str
) -> None:
    line = f"kubectl patch inference a --type=merge -p '{{\"spec\": {spec}}}'"
    (each,) = kubectls(_typed([*blocks_of(f"```console\n$ {line}\n```\n", "page")]))
    assert said in warned(kubectl, namespace, each)


def refused(kubectl: Kubectl, body: Body) -> str:
    """What the API server says of an object; nothing where it would take it."""
    place = {} if body["kind"] in CLUSTER_KINDS else {"namespace": "default"}
    meta = {key: body["metadata"][key] for key in ("name", "labels") if key in body["metadata"]}
    sent = json.dumps({**body, "metadata": {**meta, **place}})
    command = ("create", "--dry-run=server", "--validate=strict", "--filename=-")
    return kubectl.run(*command, stdin=sent).stderr


APPLIED = [(where, body) for where, body in manifests() if body["apiVersion"] not in NOT_HERE]


@pytest.mark.parametrize(
    ("where", "body"), [pytest.param(where, body, id=f"{where}-{body['kind']}") for where, body in APPLIED]
)
def test_the_api_server_takes_what_is_applied(where: str, body: Body, kubectl: Kubectl) -> None:
    said = refused(kubectl, body)
    assert said == "", where


@pytest.mark.parametrize("part", parts(), ids=lambda part: part.where)
def test_the_api_server_takes_the_whole_of_a_part(part: Part, kubectl: Kubectl) -> None:
    assert refused(kubectl, part.whole()) == ""


def test_an_object_that_it_would_not_take_is_found(kubectl: Kubectl) -> None:
    assert 'unknown field "spec.reqlicas"' in refused(kubectl, inference_body(reqlicas=2))


def helm_says(helm: Path, command: Command) -> str:
    """What Helm says of a command's options, and, where it has values, of these; nothing where it takes all."""
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
    same = [each for each in helms(ALL) if _page(each) == _page(command)]
    before = same[: same.index(command)] if command in same else []
    return [word for each in before for word in _set_by(each)]


def _page(command: Command) -> str:
    return command.where.partition(":")[0]


def _run(program: Path, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [program, *arguments]
    return subprocess.run(
        command, cwd=ROOT, input=stdin, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("command", helms(ALL), ids=words_of)
def test_helm_takes_it(command: Command, helm: Path) -> None:
    assert helm_says(helm, command) == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("helm upgrade tidegate charts/tidegate --reuse-value", "unknown flag: --reuse-value"),
        ("helm upgrade tidegate charts/tidegate --set gatway.replicas=2", "gatway"),
        ("helm upgrade tidegate charts/tydegate", "not found"),
        ("helm upgrad tidegate charts/tidegate", "upgrad"),
    ],
)
def test_what_helm_would_not_take_is_found(line: str, said: str, helm: Path) -> None:
    (command,) = helms(_typed([*blocks_of(f"```console\n$ {line}\n```\n", "page")]))
    assert said in helm_says(helm, command)


@pytest.mark.parametrize("block", values(), ids=lambda block: block.where)
def test_the_chart_takes_what_is_said_to_be_its_values(block: Block, helm: Path) -> None:
    done = _run(helm, "template", "tidegate", "charts/tidegate", "--values=-", stdin=block.text)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(block.text)


def test_a_value_that_the_chart_does_not_know_is_found(helm: Path) -> None:
    done = _run(helm, "template", "tidegate", "charts/tidegate", "--values=-", stdin="web: {hots: [a]}\n")
    assert done.returncode != 0
    assert "hots" in done.stderr
