"""Takes what may be secret out of objects and logs before they leave a cluster: better too much than too little."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.errors import PermanentError
from tidegate.resources.names import (
    BOUNDED_ANNOTATION,
    CALLS_ANNOTATION,
    ROLLED_BACK_ANNOTATION,
    TEMPLATE_ANNOTATION,
)

GONE: Final = "[redacted]"
_KEPT_ANNOTATIONS: Final = frozenset(
    {
        TEMPLATE_ANNOTATION,
        CALLS_ANNOTATION,
        BOUNDED_ANNOTATION,
        ROLLED_BACK_ANNOTATION,
        "tidegate.io/applied",
        "tidegate.io/created",
        "tidegate.io/epoch",
        "tidegate.io/release",
        "tidegate.io/author",
        "deployment.kubernetes.io/revision",
    }
)
"""Ours that hold hashes, names and numbers. Of all others, kubectl's copy of the whole object among them, the names stay."""
_NAMED: Final = (
    r"pass(?:word|wd|phrase)?|secret(?:[_-]?(?:access)?[_-]?key)?|token|api[_-]?key|access[_-]?key(?:[_-]?id)?|"
    r"private[_-]?key|credentials?|authorization|x-amz-(?:signature|credential|security-token)|signature|sig"
)
_PATTERNS: Final = (
    # A key in PEM, whole or cut off at the end of a log.
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        GONE,
    ),
    # user:password@host
    (re.compile(r"(?<=://)[^\s/@\"']+@"), f"{GONE}@"),
    # A JSON Web Token.
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?"), GONE),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {GONE}"),
    # Keys of AWS and Google, and tokens of Hugging Face and GitHub, by their looks.
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{35}\b|\bhf_\w{20,}|\bgh[pousr]_\w{20,}"), GONE),
    # password=…, "token": "…"
    (
        re.compile(
            rf"(?i)((?:{_NAMED})\\?[\"']?\s*[:=]\s*)"
            r"(?!\[redacted\])(?:\\?\"[^\"\\]*\\?\"|'[^']*'|[^\s,;&\"'}\])]+)"
        ),
        rf"\1{GONE}",
    ),
    # --api-key …
    (re.compile(rf"(?i)(\s--?(?:[\w-]*-)?(?:{_NAMED})\s+)(?!\[redacted\]|-)\S+"), rf"\1{GONE}"),
)
_FIELD: Final = re.compile(rf"(?i)[\w-]*(?:{_NAMED})")
_ARGUMENT: Final = re.compile(rf"(?i)^-{{1,2}}(?:[\w-]*-)?(?:{_NAMED})$")


@dataclass(slots=True)
class Redaction:
    """Takes out, and counts what it took."""

    count: int = 0

    def text(self, text: str) -> str:
        """A text, such as a log, without what looks like a credential."""
        for pattern, instead in _PATTERNS:
            text, found = pattern.subn(instead, text)
            self.count += found
        return text

    def body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """An object without managed fields, values of environment variables, foreign annotations and what looks like a credential.

        Raises PermanentError for a Secret: there is nothing to keep of one.
        """
        if body.get("kind") == "Secret":
            message = "a Secret is never part of a report"
            raise PermanentError(message)
        found: dict[str, Any] = self.value(body)
        return found

    def value(self, value: Any) -> Any:
        """Anything that is to be JSON, in the same way."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                name: self._field(str(name), each) for name, each in value.items() if name != "managedFields"
            }
        if isinstance(value, Sequence):
            return [self.value(each) for each in value]
        return value

    def _field(self, name: str, value: Any) -> Any:
        if name == "annotations" and isinstance(value, Mapping):
            return {each: self._annotation(each, text) for each, text in value.items()}
        if name == "env" and isinstance(value, Sequence) and not isinstance(value, str):
            return [self._variable(each) for each in value]
        if name in {"args", "command"} and isinstance(value, Sequence) and not isinstance(value, str):
            return self._arguments(value)
        if isinstance(value, str) and value and _FIELD.fullmatch(name):
            return self._gone()
        return self.value(value)

    def _annotation(self, name: str, text: Any) -> Any:
        return self.value(text) if name in _KEPT_ANNOTATIONS else self._gone()

    def _variable(self, variable: Any) -> Any:
        if isinstance(variable, Mapping) and variable.get("value"):
            return {**variable, "value": self._gone()}
        return self.value(variable)

    def _arguments(self, arguments: Sequence[Any]) -> list[Any]:
        """`--token`, `x` as well as `--token=x`."""
        after = False
        found: list[Any] = []
        for each in arguments:
            found.append(self._gone() if after else self.value(each))
            after = isinstance(each, str) and _ARGUMENT.match(each) is not None
        return found

    def _gone(self) -> str:
        self.count += 1
        return GONE
