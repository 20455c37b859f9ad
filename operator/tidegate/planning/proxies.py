"""What the connected proxies run of an object, and what that means for its status."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidegate.api.reasons import Reason
from tidegate.planning.serving_status import Verdict

LOOK_AGAIN: Final = timedelta(seconds=2)
"""A net only: whatever a proxy accepts or refuses wakes the objects that it is about."""


@dataclass(frozen=True, slots=True)
class ProxyView:
    """What one connected proxy runs of this object."""

    node: str
    generation: int | None
    """The object's generation in the configuration that the proxy has accepted; None: it has none of it."""
    nack: str | None = None
    """Why the proxy refused the newest configuration of this object, in Envoy's words."""
    answers: bool = True
    """Whether it has an endpoint for every request to the object."""

    def runs(self, generation: int) -> bool:
        """Whether it runs this generation, or a later one."""
        return self.generation is not None and self.generation >= generation


def settled_proxies(proxies: Sequence[ProxyView] | None) -> Sequence[ProxyView] | None:
    """Those that count for an object that all ran before: without those that have just connected, and have nothing of it yet.

    Such a gateway is not ready, so it serves nobody, and takes nothing from what was so. Where there are no others, it counts.
    """
    if proxies is None:
        return None
    return [proxy for proxy in proxies if proxy.generation is not None or proxy.nack] or proxies


def programmed_verdict(proxies: Sequence[ProxyView] | None, generation: int) -> Verdict:
    """Whether every connected proxy has accepted `generation`; None stands for xDS servers that do not answer."""
    if proxies is None:
        return Verdict(
            False, Reason.XDS_UNREACHABLE, "no xDS server answers, so what the proxies run is not known"
        )
    if not proxies:
        return Verdict(False, Reason.NO_PROXIES, "no proxy is connected to any xDS server")
    missing = [proxy for proxy in proxies if not proxy.runs(generation)]
    if not missing:
        return Verdict(True, Reason.PROGRAMMED, "every connected proxy runs the present generation")
    refused = next((proxy for proxy in missing if proxy.nack), None)
    if refused is not None:
        return Verdict(False, Reason.PROXY_REJECTED, f"proxy {refused.node}: {refused.nack}", stalled=True)
    # Not how many: that would be a write for each proxy that comes, and for each object.
    message = f"not every connected proxy runs generation {generation} yet; tidegate xds status lists them"
    return Verdict(False, Reason.WAITING_FOR_PROXIES, message)


def answering_verdict(proxies: Sequence[ProxyView] | None, generation: int) -> Verdict:
    """Whether a request finds an endpoint through any connected proxy; pods are ready before the proxies hear of it."""
    programmed = programmed_verdict(proxies, generation)
    if not programmed.holds or proxies is None:
        return programmed
    if all(proxy.answers for proxy in proxies):
        return Verdict(True, Reason.ENDPOINTS_PUBLISHED, "every connected proxy has its endpoints")
    message = "not every connected proxy has its endpoints yet; tidegate xds status lists them"
    return Verdict(False, Reason.WAITING_FOR_PROXIES, message)
