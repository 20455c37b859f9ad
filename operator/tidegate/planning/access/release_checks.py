"""Judge a sample by each check of a release: too few requests, passing, undecided, or failed beyond chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Final

from tidegate.api.release import CheckStatus, CheckVerdict, ReleaseCheck, ReleaseMetric
from tidegate.planning.access.release_sample import ReleaseSample, RequestTally
from tidegate.planning.access.sequential_test import compute_share_bounds, spend_alpha

FALSE_ALARM_RATE: Final = 0.001
"""Probability that a release whose target keeps every limit fails by chance.

It covers all passes, steps and checks together.
"""

_TAIL: Final = 0.01
"""The share of requests that may be slower than the 99th percentile."""
_BINS: Final = 400
"""More than the bins between 0 ms and an hour.

The bound is one of them, and is chosen from the same data that it judges, so the test corrects for all of them.
"""
_RULE_OF_THREE: Final = 3
_LATENCY_REQUESTS: Final = 300
_MAX_MESSAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Evidence:
    """Inputs of the checks.

    `window` counts the samples of the release; `query_results` are those of Prometheus, by query.
    """

    sample: ReleaseSample
    window: int
    query_results: Mapping[str, float | None]
    queried: bool
    """Whether Prometheus was queried; else its checks wait."""


def judge_checks(
    checks: Sequence[ReleaseCheck], evidence: Evidence, previous: Sequence[CheckStatus]
) -> tuple[CheckStatus, ...]:
    """Return the status of every check.

    `previous` are the last statuses: a latency limit outlives the stable traffic that it was computed from.
    """
    alpha = spend_alpha(FALSE_ALARM_RATE, evidence.window) / len(checks)
    previous_by_check = {status.check: status for status in previous}
    return tuple(_judge_check(check, evidence, alpha, previous_by_check.get(check.title)) for check in checks)


def _judge_check(
    check: ReleaseCheck, evidence: Evidence, alpha: float, previous: CheckStatus | None
) -> CheckStatus:
    match check.metric:
        case ReleaseMetric.ERROR_RATE:
            return _judge_error_rate(check, evidence.sample, alpha)
        case ReleaseMetric.LATENCY_P99:
            return _judge_latency(check, evidence.sample, alpha, previous)
        case None:
            return _judge_query(check, evidence, previous)


def _judge_error_rate(check: ReleaseCheck, sample: ReleaseSample, alpha: float) -> CheckStatus:
    limit = float(check.max or "0")
    target, stable = sample.target, sample.stable
    min_requests = check.min_requests or ceil(_RULE_OF_THREE / limit)
    # Errors of clients, and an outage behind all models, show on both sides.
    common = (
        compute_share_bounds(stable.failures, stable.requests, alpha / 2).high if stable.failures else 0.0
    )
    bounds = compute_share_bounds(target.failures, target.requests, alpha / 2)
    summary = f"{target.failures} of {target.requests} requests failed, the limit is {check.max}"
    if stable.failures:
        summary += f"; of the stable targets {stable.failures} of {stable.requests}"
    if bounds.low > max(limit, common):
        return _make_status(
            check, CheckVerdict.FAILED, f"{summary}; at least {bounds.low:.2%} fail, which is beyond chance"
        )
    if target.requests < min_requests:
        return _make_status(
            check, CheckVerdict.WAITING, f"{summary}; it takes {min_requests} requests to pass"
        )
    if target.failures <= limit * target.requests:
        return _make_status(check, CheckVerdict.PASSING, summary)
    return _make_status(
        check, CheckVerdict.UNDECIDED, f"{summary}; that may still be chance, or as bad elsewhere"
    )


def _judge_latency(
    check: ReleaseCheck, sample: ReleaseSample, alpha: float, previous: CheckStatus | None
) -> CheckStatus:
    ratio = float(check.max_ratio_to_stable or "1")
    target, stable = sample.target, sample.stable
    min_requests = check.min_requests or _LATENCY_REQUESTS
    bin_alpha = alpha / 2 / _BINS
    # Once the target takes all traffic there is nothing to compare with: keep the bound of the previous step.
    remembered = previous.bound_ms if previous is not None else None
    bound = (
        _compute_latency_bound(find_p99_ms(stable), ratio)
        if stable.timed_requests >= min_requests
        else remembered
    )
    if bound is None:
        message = f"the stable targets answered {stable.timed_requests} requests; it takes {min_requests} to compare with"
        return _make_status(check, CheckVerdict.WAITING, message)
    upper_bound = (
        _compute_latency_bound(_bound_percentile(stable, bin_alpha), ratio)
        if stable.timed_requests >= min_requests
        else remembered
    )
    slow = target.count_slower_than(bound)
    summary = f"p99 is {_format_time(find_p99_ms(target))} over {target.timed_requests} requests, the limit is {bound} ms"
    if upper_bound is not None:
        beyond = target.count_slower_than(max(upper_bound, bound))
        if compute_share_bounds(beyond, target.timed_requests, bin_alpha).low > _TAIL:
            message = f"{summary}; {beyond} were above it, which is beyond chance"
            return _make_status(check, CheckVerdict.FAILED, message, bound)
    if target.timed_requests < min_requests:
        return _make_status(
            check, CheckVerdict.WAITING, f"{summary}; it takes {min_requests} requests to pass", bound
        )
    if slow <= _TAIL * target.timed_requests:
        return _make_status(check, CheckVerdict.PASSING, summary, bound)
    return _make_status(
        check, CheckVerdict.UNDECIDED, f"{summary}; {slow} were above it, which may still be chance", bound
    )


def _format_time(milliseconds: int | None) -> str:
    return "unknown" if milliseconds is None else f"{milliseconds} ms"


def _compute_latency_bound(percentile: int | None, ratio: float) -> int | None:
    """Return the longest time within `ratio` of a percentile, in milliseconds; None without a percentile.

    It favours the target: the percentile may be anywhere in its bin.
    """
    if percentile is None:
        return None
    width = int(10 ** max(0, len(str(percentile)) - 2))
    return ceil((percentile + width) * ratio) - 1


def _bound_percentile(tally: RequestTally, alpha: float) -> int | None:
    """Return a time that the true 99th percentile does not exceed, but for probability `alpha`."""
    return _find_first_time(
        tally, lambda slower: compute_share_bounds(slower, tally.timed_requests, alpha).high <= _TAIL
    )


def find_p99_ms(tally: RequestTally) -> int | None:
    """Return the observed 99th percentile of the times, in milliseconds; None without an answer."""
    return _find_first_time(tally, lambda slower: slower <= _TAIL * tally.timed_requests)


def _find_first_time(tally: RequestTally, few_enough: Callable[[int], bool]) -> int | None:
    """Return the first time for which `few_enough` accepts the number of slower requests; None if none."""
    slower = tally.timed_requests
    for time_ms in sorted(tally.times):
        slower -= tally.times[time_ms]
        if few_enough(slower):
            return time_ms
    return None


def _judge_query(check: ReleaseCheck, evidence: Evidence, previous: CheckStatus | None) -> CheckStatus:
    if not evidence.queried:
        return previous or _make_status(check, CheckVerdict.WAITING, "queried at the end of the interval")
    value = evidence.query_results.get(check.prometheus or "")
    if value is None or not isfinite(value):
        return _make_status(check, CheckVerdict.WAITING, "Prometheus returns no value for the query")
    verdict = CheckVerdict.PASSING if value <= float(check.max or "0") else CheckVerdict.FAILED
    return _make_status(check, verdict, f"it is {value:g}, the limit is {check.max}")


def _make_status(
    check: ReleaseCheck, verdict: CheckVerdict, message: str, bound_ms: int | None = None
) -> CheckStatus:
    return CheckStatus(check=check.title, verdict=verdict, message=message[:_MAX_MESSAGE], bound_ms=bound_ms)
