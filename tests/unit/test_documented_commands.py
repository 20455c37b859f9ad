"""Whoever types what a page says is understood: by `tidegate`, by make and by our scripts.

What kubectl and Helm say of theirs is asked in tests/integration/test_documented_kubernetes.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from pathlib import Path

import pytest

from documented.kubectl import asked
from documented.pages import ROOT, Block, blocks, blocks_of, inline, name, pages
from documented.programs import PYTHON, TIDEGATE, of_make, of_python, of_tidegate
from documented.shell import Command, aliases, commands, lines, misspelt
from documented.tutorial import PAGE, MismatchError, run, steps

ASKED_FOR_REAL = frozenset({"kubectl", "helm"})
FOREIGN = "nobody checks"
PLAIN = frozenset({"alias", "cd", "export", "ls"})
"""What a shell does by itself, or with files alone."""
FILTERS = frozenset({"base64", "grep", "head", "sed"})
"""What makes less of what another command says."""
EXECUTED = f"{name(PAGE)}:"
"""What is typed in a test (tests/e2e/test_tutorial.py), so that foreign programs are tried too."""
SHELLS = ("console", "shell", "bash", "sh")


def problem_of(command: Command) -> str:
    program, *rest = command.words
    words = tuple(rest)
    if program == "kubectl" and words[:1] == ("tidegate",):
        program, words = words[0], words[1:]
    if program in TIDEGATE:
        return of_tidegate(words)
    if program == "make":
        return of_make(words)
    if program in PYTHON:
        return of_python(words)
    if program in ASKED_FOR_REAL | PLAIN | FILTERS:
        return ""
    return f"{FOREIGN} {program}: say why above the block, <!-- not run: … -->"


def missing(command: Command, saved: Set[str]) -> str:
    """Files that kubectl is given and that are neither of the repository nor saved by the reader of the page."""
    kubectl = asked(command)
    named = kubectl.files() if kubectl else ()
    lacking = [each for each in named if each not in saved and not (ROOT / each).exists()]
    return f"there is no {', '.join(lacking)}: have the page save it, <!-- file: … -->" if lacking else ""


def problems(text: str, page: str = "page") -> list[str]:
    """What is wrong with the commands of a page."""
    found = [block for block in blocks_of(text, page) if block.language in SHELLS]
    names = {alias: meant for block in found for alias, meant in aliases(block).items()}
    saved = {block.file for block in blocks_of(text, page)}
    return [problem for block in found for problem in _problems_of(block, names, saved)]


def _problems_of(block: Block, names: Mapping[str, tuple[str, ...]], saved: Set[str]) -> list[str]:
    """What a block that says why it is not run may have is what only others know; ours is checked there too."""
    if unreadable := misspelt(block):
        return [] if block.not_run else [f"{block.where}: {unreadable}"]
    said = [
        (command, problem_of(command) or missing(command, saved))
        for command in commands(block, names)
        if not saved & {*command.words[1:2]}
    ]
    foreign = [command for command, problem in said if problem.startswith(FOREIGN)]
    if block.not_run and not foreign:
        return [f"{block.where}: all of it is checked, so that it need not say why not"]
    return [
        f"{command}: {problem}"
        for command, problem in said
        if problem and not ((block.not_run or block.where.startswith(EXECUTED)) and command in foreign)
    ]


@pytest.mark.parametrize("path", [path for path in pages() if "```" in path.read_text()], ids=name)
def test_commands_are_understood(path: Path) -> None:
    assert problems(path.read_text(), name(path)) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tidegate status --wiat", "No such option: --wiat"),
        ("tidegate staus", "no command 'staus'"),
        ("tidegate hold", "lacks target"),
        ("tidegate get inferences a b", "takes no 'b'"),
        ("tidegate get --sort size", "sort is none of"),
        ("tidegate plan cpu-a --slices", "requires an argument"),
        ("kubectl tidegate why --depth 2", "No such option: --depth"),
        ("tidegate release stop ctr", "tidegate release has no command 'stop'"),
        ("tidegate local ups", "tidegate local has no command 'ups'"),
        ("make demos", "no target demos"),
        ("make test PYTEST_OPTIONS=-x", "no variable PYTEST_OPTIONS"),
        ("python bench/no_such.py", "there is no bench/no_such.py"),
        ("python bench/kill_sweep.py --fault kill", "bench/kill_sweep.py has no --fault"),
        ("python -m tidegate_localcluster.no_such", "there is no -m tidegate_localcluster.no_such"),
        ("curl http://127.0.0.1:8080/", "nobody checks curl"),
        ('X="$(tidegate xds boot)"', "tidegate xds has no command 'boot'"),
        ("cat a.txt", "nobody checks cat"),
        ("kubectl apply -f examples/no-such.yaml", "there is no examples/no-such.yaml"),
        ("kubectl patch cm a --patch-file=gitops/none.yaml", "there is no gitops/none.yaml"),
        ("tidegate local kubectl apply --filename none.yaml", "there is no none.yaml"),
        ("ls | tidegate staus", "no command 'staus'"),
        ("echo 'open", "unexpected EOF"),
    ],
)
def test_what_would_not_be_understood_is_found(line: str, said: str) -> None:
    (problem,) = problems(f"```console\n$ {line}\n```\n")
    assert said in problem


def test_what_is_not_run_says_why_and_ours_is_checked_all_the_same() -> None:
    assert problems("<!-- not run: it asks a server of yours -->\n```console\n$ curl http://a/\n```\n") == []
    assert problems("<!-- not run:  -->\n```console\n$ curl http://a/\n```\n") != []
    (ours,) = problems("<!-- not run: a server -->\n```console\n$ curl http://a/\n$ make demos\n```\n")
    assert "no target demos" in ours
    (needless,) = problems("<!-- not run: it takes long -->\n```console\n$ make demo\n```\n")
    assert "need not say" in needless


@pytest.mark.parametrize(
    "typed",
    [
        "kubectl apply -f a.yaml",
        "kubectl apply -f -",
        "kubectl apply -f https://example.com/a.yaml",
        "kubectl apply -f gitops/argocd/argocd-cm.yaml",
    ],
)
def test_a_file_may_be_saved_on_the_page_piped_fetched_or_of_the_repository(typed: str) -> None:
    page = f"<!-- file: a.yaml -->\n```yaml\na: 1\n```\n\n```console\n$ {typed}\n```\n"
    assert problems(page) == []


def test_what_is_typed_is_told_from_what_is_printed() -> None:
    text = "1. Do:\n\n   ```console\n   $ a --b \\\n       c   # why\n   printed\n   $ X=1 d 'e f' > g && h\n   ```\n"
    (block,) = blocks_of(text, "page")
    assert lines(block) == ["a --b  c   # why", "X=1 d 'e f' > g && h"]
    assert [each.words for each in commands(block)] == [("a", "--b", "c"), ("d", "e f"), ("h",)]
    assert block.where == "page:3"


def test_an_alias_stands_for_what_it_means() -> None:
    text = "```console\n$ alias k='tidegate local kubectl -n a'\n$ k get pods\n```\n"
    (block,) = blocks_of(text, "page")
    (_, command) = commands(block, aliases(block))
    assert command.words == ("tidegate", "local", "kubectl", "-n", "a", "get", "pods")


WRITTEN_FROM_CODE = frozenset({"docs/reference/commands.md"})


def mentioned() -> list[tuple[str, tuple[str, ...]]]:
    return [
        (where, tuple(code.split()))
        for where, code in inline(but=WRITTEN_FROM_CODE)
        if code.startswith(("tidegate ", "kubectl tidegate ", "make ")) and "|" not in code
    ]


def test_commands_within_sentences_are_understood() -> None:
    found = mentioned()
    assert len(found) > 50
    wrong = [
        f"{where}: {' '.join(words)}: {said}"
        for where, words in found
        if (said := _problem_within_a_sentence(words))
    ]
    assert wrong == []


def _problem_within_a_sentence(words: tuple[str, ...]) -> str:
    program, *rest = words
    if program == "kubectl":
        rest = rest[1:]
    if program == "make":
        return of_make(tuple(rest)) if '"' not in " ".join(rest) else of_make(tuple(rest[:1]))
    # What is left out, as in `tidegate local …`.
    rest = [word for word in rest if word != "…"]
    if rest[-1:] and rest[-1].startswith("--"):
        # An option that is named without its value.
        return min(of_tidegate((*rest, "1"), whole=False), of_tidegate(tuple(rest), whole=False), key=len)
    return of_tidegate(tuple(rest), whole=False)


@pytest.mark.parametrize(
    "block", [each for each in blocks("json") if not each.not_run], ids=lambda block: block.where
)
def test_json_is_json(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.where)
def test_python_is_python(block: Block) -> None:
    compile(block.text, block.where, "exec")


def page_of(*typed: str, saved: str = "") -> str:
    file = f"<!-- file: a.txt -->\n```text\n{saved}\n```\n\n" if saved else ""
    return file + "".join(f"```console\n{each}\n```\n\n" for each in typed)


def test_what_a_tutorial_says_is_typed_in_one_shell(tmp_path: Path) -> None:
    text = page_of(
        "$ A=1\n$ alias show='cat'",
        '$ show a.txt\nhello\n$ printf "$A"\n1',
        '$ echo "$A" \\\n    2\n1 2',
        saved="hello",
    )
    assert run(steps(text, "page"), tmp_path, {}, timeout_s=60) == ["", "hello\n1", "1 2\n"]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("$ true", "$ false\n$ echo not reached"), "page:5"),
        (("$ echo 1\n2",), "'2'"),
        (('$ echo "$UNSET"',), "UNSET"),
        (("$ false | cat",), "page:1"),
    ],
    ids=["fails", "prints", "unset", "piped"],
)
def test_what_a_tutorial_promises_in_vain_is_found(tmp_path: Path, typed: tuple[str, ...], said: str) -> None:
    with pytest.raises(MismatchError, match=said):
        run(steps(page_of(*typed), "page"), tmp_path, {}, timeout_s=60)
