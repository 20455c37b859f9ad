"""The base of every contract model: camelCase in JSON; unknown fields are ignored, so that versions can differ."""

import hashlib
import json

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

    def compute_digest(self) -> str:
        """Return the sha256 (hex) over the plan's canonical JSON without `hash`."""
        content = self.model_dump(mode="json", by_alias=True, exclude={"hash"})
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()
