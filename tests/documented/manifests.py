"""What people apply: objects in blocks of YAML and in examples/, whole ones and parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from builders.compute_pool import compute_pool_body
from builders.feature_compute import feature_compute_body
from builders.inference import inference_body
from builders.model_access import model_access_body
from builders.overlay import overlaid
from documented.pages import ROOT, Block, blocks, name
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import API_VERSION, CustomResource
from tidegate.api.model_access import ModelAccess
from tidegate.errors import InvalidSpecError

Body = dict[str, Any]
OURS: Mapping[str, type[CustomResource]] = {
    kind.KIND: kind for kind in (Inference, ModelAccess, FeatureCompute, ComputePool, ComputeOverride)
}
VALUES = "the chart's values"
_LEAST = {
    "Inference": inference_body,
    "ModelAccess": model_access_body,
    "FeatureCompute": feature_compute_body,
    "ComputePool": compute_pool_body,
}


def of_block(block: Block) -> list[Body]:
    """The objects of a block, or of a file of examples."""
    return [body for body in yaml.safe_load_all(block.text) if isinstance(body, dict)]


def manifests() -> Iterator[tuple[str, Body]]:
    """Every whole object, with its page or file."""
    for block in blocks("yaml"):
        for body in of_block(block):
            if "kind" in body:
                yield block.where, body
    for path in sorted((ROOT / "examples").rglob("*.yaml")):
        for body in yaml.safe_load_all(path.read_text()):
            yield name(path), body


def ours() -> Iterator[tuple[str, Body]]:
    """Those of our kinds."""
    return ((where, body) for where, body in manifests() if body["apiVersion"] == API_VERSION)


@dataclass(frozen=True)
class Part:
    """A part of an object: it is laid over the page's own of that kind, or over the least that is valid."""

    where: str
    kind: str
    wholes: tuple[Body, ...]

    def whole(self) -> Body:
        """The first that is valid, or the first of all."""
        return next((body for body in self.wholes if not self._problem(body)), self.wholes[0])

    def problem(self) -> str:
        """What the models say; empty where one of the wholes is valid."""
        return self._problem(self.whole())

    def _problem(self, body: Body) -> str:
        try:
            OURS[self.kind].parse(body)
        except InvalidSpecError as error:
            return f"{self.where}: {error}"
        return ""


def parts(of: Iterable[Block] | None = None) -> list[Part]:
    """Blocks that say which kind they are a part of."""
    found: list[Part] = []
    before: dict[tuple[str, str], Body] = {}
    for block in blocks("yaml") if of is None else of:
        page = block.where.partition(":")[0]
        for body in of_block(block):
            if "kind" in body:
                before[page, body["kind"]] = body
            elif block.part_of and block.part_of != VALUES:
                least = _LEAST[block.part_of]()
                bases = [*filter(None, [before.get((page, block.part_of))]), least]
                wholes = tuple(overlaid(base, body) for base in bases)
                found.append(Part(block.where, block.part_of, wholes))
    return found


def values() -> list[Block]:
    """Blocks that are values of our chart."""
    return [block for block in blocks("yaml") if block.part_of == VALUES]


def unclaimed() -> list[str]:
    """Blocks that are neither whole objects nor say what they are a part of, or why nobody checks them."""
    return [
        block.where
        for block in blocks("yaml")
        if not block.part_of
        and not block.not_run
        and not all(isinstance(body, dict) and "kind" in body for body in yaml.safe_load_all(block.text))
    ]
