"""Redact possible secrets in objects and logs before they leave a cluster: rather too much than too little."""

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

REDACTED: Final = "[redacted]"
_SAFE_ANNOTATIONS: Final = frozenset(
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
_SENSITIVE_NAMES: Final = (
    r"pass(?:word|wd|phrase)?|secret(?:[_-]?(?:access)?[_-]?key)?|token|api[_-]?key|access[_-]?key(?:[_-]?id)?|"
    r"private[_-]?key|credentials?|authorization|x-amz-(?:signature|credential|security-token)|signature|sig"
)
_PATTERNS: Final = (
    # A key in PEM, whole or cut off at the end of a log.
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        REDACTED,
    ),
    # user:password@host
    (re.compile(r"(?<=://)[^\s/@\"']+@"), f"{REDACTED}@"),
    # A JSON Web Token.
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?"), REDACTED),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {REDACTED}"),
    # Keys of AWS and Google, and tokens of Hugging Face and GitHub, by their format.
    (
        re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{35}\b|\bhf_\w{20,}|\bgh[pousr]_\w{20,}"),
        REDACTED,
    ),
    # password=…, "token": "…"
    (
        re.compile(
            rf"(?i)((?:{_SENSITIVE_NAMES})\\?[\"']?\s*[:=]\s*)"
            r"(?!\[redacted\])(?:\\?\"[^\"\\]*\\?\"|'[^']*'|[^\s,;&\"'}\])]+)"
        ),
        rf"\1{REDACTED}",
    ),
    # --api-key …
    (re.compile(rf"(?i)(\s--?(?:[\w-]*-)?(?:{_SENSITIVE_NAMES})\s+)(?!\[redacted\]|-)\S+"), rf"\1{REDACTED}"),
)
_SENSITIVE_FIELD: Final = re.compile(rf"(?i)[\w-]*(?:{_SENSITIVE_NAMES})")
_SENSITIVE_ARGUMENT: Final = re.compile(rf"(?i)^-{{1,2}}(?:[\w-]*-)?(?:{_SENSITIVE_NAMES})$")


@dataclass(slots=True)
class Redactor:
    """A redactor that counts the values it redacts."""

    count: int = 0

    def redact_text(self, text: str) -> str:
        """Redact everything in a text, such as a log, that looks like a credential."""
        for pattern, instead in _PATTERNS:
            text, count = pattern.subn(instead, text)
            self.count += count
        return text

    def redact_object(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Redact an object: environment variables, foreign annotations, and what looks like a credential.

        Managed fields are dropped. Raises PermanentError for a Secret, because no part of it may remain.
        """
        if body.get("kind") == "Secret":
            message = "a Secret is never part of a report"
            raise PermanentError(message)
        redacted: dict[str, Any] = self.redact_value(body)
        return redacted

    def redact_value(self, value: Any) -> Any:
        """Redact any JSON value in the same way."""
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, Mapping):
            return {
                name: self._redact_field(str(name), item)
                for name, item in value.items()
                if name != "managedFields"
            }
        if isinstance(value, Sequence):
            return [self.redact_value(item) for item in value]
        return value

    def _redact_field(self, name: str, value: Any) -> Any:
        if name == "annotations" and isinstance(value, Mapping):
            return {
                annotation: self._redact_annotation(annotation, text) for annotation, text in value.items()
            }
        if name == "env" and isinstance(value, Sequence) and not isinstance(value, str):
            return [self._redact_variable(variable) for variable in value]
        if name in {"args", "command"} and isinstance(value, Sequence) and not isinstance(value, str):
            return self._redact_arguments(value)
        if isinstance(value, str) and value and _SENSITIVE_FIELD.fullmatch(name):
            return self._count_redacted()
        return self.redact_value(value)

    def _redact_annotation(self, name: str, text: Any) -> Any:
        return self.redact_value(text) if name in _SAFE_ANNOTATIONS else self._count_redacted()

    def _redact_variable(self, variable: Any) -> Any:
        if isinstance(variable, Mapping) and variable.get("value"):
            return {**variable, "value": self._count_redacted()}
        return self.redact_value(variable)

    def _redact_arguments(self, arguments: Sequence[Any]) -> list[Any]:
        """Redact the values of arguments: `--token`, `x` as well as `--token=x`."""
        is_secret = False
        redacted: list[Any] = []
        for argument in arguments:
            redacted.append(self._count_redacted() if is_secret else self.redact_value(argument))
            is_secret = isinstance(argument, str) and _SENSITIVE_ARGUMENT.match(argument) is not None
        return redacted

    def _count_redacted(self) -> str:
        self.count += 1
        return REDACTED
