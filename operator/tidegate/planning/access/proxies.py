"""Judge whether the connected proxies run an object's routes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidegate.api.reasons import Reason
from tidegate.planning.inference.serving_status import Verdict

PROXY_REQUEUE: Final = timedelta(seconds=2)
"""A safety net only: an ACK or NACK wakes the objects that it concerns."""


@dataclass(frozen=True, slots=True)
class ProxyView:
    """State of this object in one connected proxy."""

    node: str
    generation: int | None
    """The object's generation in the configuration that the proxy has accepted; None if it has none."""
    nack: str | None = None
    """Envoy's message why the proxy rejected the newest configuration of this object."""
    has_endpoints: bool = True
    """Whether it has an endpoint for every request to the object."""

    def runs_generation(self, generation: int) -> bool:
        """Return whether it runs this generation or a later one."""
        return self.generation is not None and self.generation >= generation


def select_settled_proxies(proxies: Sequence[ProxyView] | None) -> Sequence[ProxyView] | None:
    """Return the proxies that count for an object that all proxies ran before.

    A gateway that has just connected, and has nothing of the object yet, is not ready and serves no requests, so it does not
    count, unless there are no others.
    """
    if proxies is None:
        return None
    return [proxy for proxy in proxies if proxy.generation is not None or proxy.nack] or proxies


def judge_programmed(proxies: Sequence[ProxyView] | None, generation: int) -> Verdict:
    """Return whether every connected proxy has accepted `generation`.

    `proxies` is None if no xDS server answers.
    """
    if proxies is None:
        return Verdict(
            False, Reason.XDS_UNREACHABLE, "no xDS server answers, so the state of the proxies is unknown"
        )
    if not proxies:
        return Verdict(False, Reason.NO_PROXIES, "no proxy is connected to any xDS server")
    missing = [proxy for proxy in proxies if not proxy.runs_generation(generation)]
    if not missing:
        return Verdict(True, Reason.PROGRAMMED, "every connected proxy runs the current generation")
    rejecting = next((proxy for proxy in missing if proxy.nack), None)
    if rejecting is not None:
        return Verdict(
            False, Reason.PROXY_REJECTED, f"proxy {rejecting.node}: {rejecting.nack}", stalled=True
        )
    # No numbers in the message: these would cost a write for each object and each proxy that connects.
    message = f"not every connected proxy runs generation {generation} yet; tidegate xds status lists them"
    return Verdict(False, Reason.WAITING_FOR_PROXIES, message)


def judge_endpoints(proxies: Sequence[ProxyView] | None, generation: int) -> Verdict:
    """Return whether a request finds an endpoint through any connected proxy.

    Pods are ready before the proxies know their endpoints.
    """
    programmed = judge_programmed(proxies, generation)
    if not programmed.holds or proxies is None:
        return programmed
    if all(proxy.has_endpoints for proxy in proxies):
        return Verdict(True, Reason.ENDPOINTS_PUBLISHED, "every connected proxy has its endpoints")
    message = "not every connected proxy has its endpoints yet; tidegate xds status lists them"
    return Verdict(False, Reason.WAITING_FOR_PROXIES, message)
