"""The base of every contract model: camelCase in JSON; unknown fields are ignored, so that versions can differ."""

import hashlib
import json
from typing import ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel

_LEAST_INTEGER: Final = -(2**63)
_GREATEST_INTEGER: Final = 2**64 - 1
_GREATEST_COUNT: Final = 2**62
"""So that the sum of two counts is no integer beyond those."""


def fit_count(count: int) -> int:
    """Return what a report can contain of a number that a broker has sent: one that sends more, or less than none, is wrong."""
    return min(max(count, 0), _GREATEST_COUNT)


class ContractModel(BaseModel):
    """A frozen value with snake_case names in Python and camelCase names in JSON."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        serialize_by_alias=True,
        extra="ignore",
        frozen=True,
    )

    @model_validator(mode="after")
    def _check_integers(self) -> Self:
        # JSON has integers of any length, with which no float can be computed.
        for name, value in self.__dict__.items():
            if type(value) is int and not _LEAST_INTEGER <= value <= _GREATEST_INTEGER:
                message = f"{name} does not fit into 64 bits"
                raise ValueError(message)
        return self

    def to_json(self) -> str:
        """Return the JSON that the other side reads."""
        return self.model_dump_json(by_alias=True)


class PlanModel(ContractModel):
    """A compiled plan, which a pod runs unchanged and which its field `hash` identifies."""

    NOT_HASHED: ClassVar[frozenset[str]] = frozenset({"hash"})
    """Fields that change no result."""

    def compute_digest(self) -> str:
        """Return the sha256 (hex) over the plan's canonical JSON without the fields NOT_HASHED."""
        content = self.model_dump(mode="json", by_alias=True, exclude=set(self.NOT_HASHED))
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()
