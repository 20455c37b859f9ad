"""The base of every contract model: camelCase in JSON; unknown fields are ignored, so that versions can differ."""

import hashlib
import json
from typing import ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ContractModel(BaseModel):
    """A frozen value with snake_case names in Python and camelCase names in JSON."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        serialize_by_alias=True,
        extra="ignore",
        frozen=True,
    )

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
