"""What each check of a release says of a sample: too little, passing, undecided, or failed beyond chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Final

from tidegate.api.release import CheckStatus, CheckVerdict, Metric, ReleaseCheck
from tidegate.planning.sample import Sample, Tally
from tidegate.planning.sequential import share_bounds, spent

FALSE_ALARM: Final = 0.001
"""The probability that a release of a target which keeps every limit fails by chance, all looks, steps and checks together."""

_TAIL: Final = 0.01
"""What may be above a 99th percentile."""
_BINS: Final = 400
"""More than the bins between 0 ms and an hour: the bound is one of them, and found in the same data that it judges."""
_RULE_OF_THREE: Final = 3
_LATENCY_REQUESTS: Final = 300
_MAX_MESSAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the checks look at; `window` counts the samples of the release, `answers` are those of Prometheus, by query."""

    sample: Sample
    window: int
    answers: Mapping[str, float | None]
    asked: bool
    """Whether Prometheus was asked; else its checks have nothing to say yet."""


def judge(
    checks: Sequence[ReleaseCheck], evidence: Evidence, before: Sequence[CheckStatus]
) -> tuple[CheckStatus, ...]:
    """What every check says; `before` is what they said last, for limits that outlive the traffic they came from."""
    alpha = spent(FALSE_ALARM, evidence.window) / len(checks)
    said = {status.check: status for status in before}
    return tuple(_judge(check, evidence, alpha, said.get(check.title)) for check in checks)


def _judge(check: ReleaseCheck, evidence: Evidence, alpha: float, before: CheckStatus | None) -> CheckStatus:
    match check.metric:
        case Metric.ERROR_RATE:
            return _error_rate(check, evidence.sample, alpha)
        case Metric.LATENCY_P99:
            return _latency(check, evidence.sample, alpha, before)
        case None:
            return _query(check, evidence, before)


def _error_rate(check: ReleaseCheck, sample: Sample, alpha: float) -> CheckStatus:
    limit = float(check.max or "0")
    target, stable = sample.target, sample.stable
    least = check.min_requests or ceil(_RULE_OF_THREE / limit)
    # What clients do wrong, and an outage behind all models, fails on both sides.
    common = share_bounds(stable.failures, stable.requests, alpha / 2).high if stable.failures else 0.0
    bounds = share_bounds(target.failures, target.requests, alpha / 2)
    seen = f"{target.failures} of {target.requests} requests failed, the limit is {check.max}"
    if stable.failures:
        seen += f"; of the stable targets {stable.failures} of {stable.requests}"
    if bounds.low > max(limit, common):
        return _says(
            check, CheckVerdict.FAILED, f"{seen}; at least {bounds.low:.2%} fail, and that is no chance"
        )
    if target.requests < least:
        return _says(check, CheckVerdict.WAITING, f"{seen}; it takes {least} requests to pass")
    if target.failures <= limit * target.requests:
        return _says(check, CheckVerdict.PASSING, seen)
    return _says(check, CheckVerdict.UNDECIDED, f"{seen}; that may still be chance, or as bad elsewhere")


def _latency(check: ReleaseCheck, sample: Sample, alpha: float, before: CheckStatus | None) -> CheckStatus:
    ratio = float(check.max_ratio_to_stable or "1")
    target, stable = sample.target, sample.stable
    least = check.min_requests or _LATENCY_REQUESTS
    each = alpha / 2 / _BINS
    # When the target takes everything there is nothing to compare with any more; what held a step before still does.
    remembered = before.bound_ms if before is not None else None
    bound = _bound(_percentile(stable), ratio) if stable.timed >= least else remembered
    if bound is None:
        message = f"the stable targets answered {stable.timed} requests; it takes {least} to compare with"
        return _says(check, CheckVerdict.WAITING, message)
    certain = _bound(_certain_percentile(stable, each), ratio) if stable.timed >= least else remembered
    slow = target.slower_than(bound)
    seen = f"p99 is {_text(_percentile(target))} over {target.timed} requests, the limit is {bound} ms"
    if certain is not None:
        beyond = target.slower_than(max(certain, bound))
        if share_bounds(beyond, target.timed, each).low > _TAIL:
            message = f"{seen}; {beyond} were above it, and that is no chance"
            return _says(check, CheckVerdict.FAILED, message, bound)
    if target.timed < least:
        return _says(check, CheckVerdict.WAITING, f"{seen}; it takes {least} requests to pass", bound)
    if slow <= _TAIL * target.timed:
        return _says(check, CheckVerdict.PASSING, seen, bound)
    return _says(
        check, CheckVerdict.UNDECIDED, f"{seen}; {slow} were above it, which may still be chance", bound
    )


def _text(milliseconds: int | None) -> str:
    return "unknown" if milliseconds is None else f"{milliseconds} ms"


def _bound(percentile: int | None, ratio: float) -> int | None:
    """The longest time within `ratio`, in the favour of the target: the percentile is anywhere in its bin."""
    if percentile is None:
        return None
    width = int(10 ** max(0, len(str(percentile)) - 2))
    return ceil((percentile + width) * ratio) - 1


def _certain_percentile(tally: Tally, alpha: float) -> int | None:
    """A time that the true 99th percentile does not exceed."""
    return _first(tally, lambda slower: share_bounds(slower, tally.timed, alpha).high <= _TAIL)


def _percentile(tally: Tally) -> int | None:
    """The 99th percentile of what was seen."""
    return _first(tally, lambda slower: slower <= _TAIL * tally.timed)


def _first(tally: Tally, few_enough: Callable[[int], bool]) -> int | None:
    """The first time that so few exceed; None when there is none."""
    slower = tally.timed
    for at in sorted(tally.times):
        slower -= tally.times[at]
        if few_enough(slower):
            return at
    return None


def _query(check: ReleaseCheck, evidence: Evidence, before: CheckStatus | None) -> CheckStatus:
    if not evidence.asked:
        return before or _says(check, CheckVerdict.WAITING, "asked at the end of the interval")
    value = evidence.answers.get(check.prometheus or "")
    if value is None or not isfinite(value):
        return _says(check, CheckVerdict.WAITING, "Prometheus gives no value for it")
    verdict = CheckVerdict.PASSING if value <= float(check.max or "0") else CheckVerdict.FAILED
    return _says(check, verdict, f"it is {value:g}, the limit is {check.max}")


def _says(
    check: ReleaseCheck, verdict: CheckVerdict, message: str, bound_ms: int | None = None
) -> CheckStatus:
    return CheckStatus(check=check.title, verdict=verdict, message=message[:_MAX_MESSAGE], bound_ms=bound_ms)
