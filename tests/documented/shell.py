"""What a block has people type: each command of it, as words."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from documented.pages import Block

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_ENDS = frozenset({"|", "||", "&&", "&", ";"})
_REDIRECTIONS = frozenset({">", ">>", "<", "2>"})


@dataclass(frozen=True)
class Command:
    """One program with its arguments."""

    where: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.where}: {' '.join(self.words)}"


def lines(block: Block) -> list[str]:
    """What is typed, without prompts; what a program prints is left out, and lines that go on are joined."""
    text = re.sub(r"\\\n\s*", " ", block.text)
    if block.language == "console":
        return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    return [line for line in text.splitlines() if line.strip()]


def misspelt(block: Block) -> str:
    """What a shell says that cannot read the block; empty where it can."""
    done = subprocess.run(
        ["bash", "-n"], input="\n".join(lines(block)), capture_output=True, text=True, check=False, timeout=60
    )
    return done.stderr


def commands(block: Block, aliases: Mapping[str, tuple[str, ...]] | None = None) -> Iterator[Command]:
    """Each command, also those within others; without what is assigned before them and what they are redirected to."""
    for line in lines(block):
        yield from _of_line(block.where, line, aliases or {})


def aliases(block: Block) -> dict[str, tuple[str, ...]]:
    """Names that a block gives to beginnings of commands."""
    found = (shlex.split(line, comments=True) for line in lines(block) if line.startswith("alias "))
    pairs = (words[1].partition("=") for words in found)
    return {alias: tuple(shlex.split(meant)) for alias, _, meant in pairs}


def _of_line(where: str, line: str, aliases: Mapping[str, tuple[str, ...]]) -> Iterator[Command]:
    for inner in _SUBSTITUTION.findall(line):
        yield from _of_line(where, inner, aliases)
    words: list[str] = []
    for word in [*_words(line), ";"]:
        if word not in _ENDS:
            words.append(word)
        elif words:
            yield from _command(where, words, aliases)
            words = []


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(_SUBSTITUTION.sub("substituted", line), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    return list(lexer)


def _command(where: str, words: list[str], aliases: Mapping[str, tuple[str, ...]]) -> Iterator[Command]:
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    for index, word in enumerate(words):
        if word in _REDIRECTIONS:
            words = words[:index]
            break
    if words:
        yield Command(where, (*aliases.get(words[0], (words[0],)), *words[1:]))
