"""Check names and prose against docs/reference/glossary.md and style rules 24 to 28; exceptions may only shrink.

python .ci/vocabulary.py            # fail when anything is worse than .ci/vocabulary.json allows
python .ci/vocabulary.py --update   # lower the limits to what the code needs now; never raises one
"""

import ast
import collections
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMITS = ROOT / ".ci" / "vocabulary.json"
ROOTS = {
    "operator": ("operator", "controllers"),
    "dataplane": ("dataplane",),
    "localcluster": ("localcluster",),
}
FOLDERS = {
    "README.md and CONTRIBUTING.md": ("README.md", "CONTRIBUTING.md"),
    **{
        folder: (f"docs/{folder}/*.md",)
        for folder in ("adr", "explanation", "how-to", "runbooks", "tutorial")
    },
}

CONTENT_FREE = re.compile(
    r"apart|asked|at|each|found|gone|held|kept|known|least|left|look|more|most|one|others|said|seen|there|told|"
    r"wanted|what|where|who|whole|whom|whose|why|words"
)
IDIOM = re.compile(
    r"\b(who|whoever|whom|nobody|somebody|anybody|everybody|anew|in vain|likewise|astray|for want of|of no use|"
    r"says|said|tells|told|heard|is to (?:be|have|get)|are to (?:be|have|get))\b",
    re.IGNORECASE,
)
NOT_A_VERB = re.compile(
    r"(The|A|An|Whether|What|How|Why|Those|Of|Its|As|From|By|Where|When|One|All|Every|Who|In|For|To|With)\b"
)
PRIVATE_PHRASE = re.compile(
    r"\bcarr(?:y|ies|ied|ying) (?:\w+ )?out\b|\bin force\b|\bof which it\b|\babout which\b|"
    r"\b(?:after|at least|at most|by|for|of|out of|with) so (?:long|many|much|often)\b|"
    r"(?:^|\. )Those (?:by|of|that|which|with|without)\b",
    re.IGNORECASE | re.MULTILINE,
)
"""Execute, active, 'after this time', and a noun as the subject say it in the words of the glossary."""

Offences = dict[str, list[str]]  # by key of the limits: where, and what


def _tracked(*patterns: str) -> list[pathlib.Path]:
    listed = subprocess.check_output(["git", "-C", ROOT, "ls-files", *patterns], text=True)
    return [path for line in listed.splitlines() if (path := ROOT / line).exists()]


def _bindings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg


def _check_module(path: pathlib.Path, tree: ast.Module, offences: Offences) -> None:
    name = str(path.relative_to(ROOT))
    for node in ast.walk(tree):
        for binding in _bindings(node):
            if CONTENT_FREE.fullmatch(binding):
                offences[f"name without content: {name}"].append(
                    f"{name}:{node.lineno}: name {binding!r} after the thing"  # type: ignore[attr-defined]
                )
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first_line = (ast.get_docstring(node) or "").partition("\n")[0]
            if NOT_A_VERB.match(first_line):
                offences[f"docstring without verb: {name}"].append(
                    f"{name}:{node.lineno}: begin with a verb: {first_line!r}"
                )


def _check_phrases(path: pathlib.Path, texts: Iterator[tuple[int, str]], offences: Offences) -> None:
    name = str(path.relative_to(ROOT))
    for line, text in texts:
        for phrase in PRIVATE_PHRASE.findall(text):
            offences[f"private phrase: {name}"].append(f"{name}:{line}: {phrase.strip()!r}")


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def _check_classes(trees: Mapping[pathlib.Path, ast.Module], offences: Offences) -> None:
    places: dict[str, list[str]] = collections.defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}: class {node.name}")
    for name, lines in places.items():
        if len(lines) > 1:
            offences[f"class name used again: {name}"] = lines[1:]


def _check_modules(paths: list[pathlib.Path], offences: Offences) -> None:
    stems = {(path.parent, path.stem) for path in paths}
    for path in paths:
        stem = path.stem.removesuffix("ing")
        nouns = {stem, stem + "e", stem[:-1]}
        if path.stem.endswith("ing") and any((path.parent, noun) in stems for noun in nouns):
            name = str(path.relative_to(ROOT))
            offences[f"gerund beside its noun: {name}"].append(f"{name}: one module for both")


def _count_one_word(trees: Mapping[pathlib.Path, ast.Module]) -> int:
    names = [
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__")
    ]
    return sum("_" not in name.strip("_") for name in names)


def _idiom_rate(paths: list[pathlib.Path]) -> float:
    texts = [re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL) for path in paths]
    words = sum(len(text.split()) for text in texts)
    return round(1000 * sum(len(IDIOM.findall(text)) for text in texts) / max(words, 1), 2)


def measure() -> tuple[dict[str, float], Offences]:
    """Return each measure, and the lines behind those that are counts."""
    figures: dict[str, float] = {}
    offences: Offences = collections.defaultdict(list)
    for root, folders in ROOTS.items():
        paths = _tracked(*(f"{folder}/*.py" for folder in folders))
        trees = {path: ast.parse(path.read_text()) for path in paths}
        for path, tree in trees.items():
            _check_module(path, tree, offences)
            _check_phrases(path, _strings(tree), offences)
        _check_classes(trees, offences)
        _check_modules(paths, offences)
        figures[f"functions with a one-word name: {root}"] = _count_one_word(trees)
    for folder, patterns in FOLDERS.items():
        pages = _tracked(*patterns)
        figures[f"idioms per 1,000 words: {folder}"] = _idiom_rate(pages)
        for page in pages:
            _check_phrases(page, iter(enumerate(page.read_text().splitlines(), start=1)), offences)
    return figures | {key: float(len(lines)) for key, lines in offences.items()}, offences


def main() -> None:
    measured, offences = measure()
    limits: dict[str, float] = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    if "--update" in sys.argv[1:]:
        fresh = {
            key: min(value, limits.get(key, value if not limits else 0)) for key, value in measured.items()
        }
        fresh = {key: int(value) if value == int(value) else value for key, value in fresh.items() if value}
        LIMITS.write_text(json.dumps(fresh, indent=1, sort_keys=True) + "\n")
        limits = fresh
    worse = {key: value for key, value in measured.items() if value > limits.get(key, 0)}
    for key, value in sorted(worse.items()):
        print(f"{key}: {value:g}, allowed {limits.get(key, 0):g}", *offences.get(key, ()), sep="\n  ")
    if worse:
        print("\nThe words are those of docs/reference/glossary.md; the limits are in .ci/vocabulary.json.")
        sys.exit(1)


if __name__ == "__main__":
    main()
