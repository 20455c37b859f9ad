"""Near-line streams, batches and sample logs: how far the work is, and what was lost."""

from __future__ import annotations

from typing import Final

from tidegate.grafana.panels import Dashboard, Panel, Query, Row, Unit
from tidegate.grafana.selecting import (
    INFERENCE,
    NAMESPACE,
    RATE,
    of_pods,
    or_none,
    rate,
)

_POD: Final = "{{pod}}"
_WHOSE: Final = "inf-(.+)-[^-]+-[^-]+"


def _by_inference(how: str, series: str) -> str:
    """Over the pods of each Inference's Deployment."""
    return f'{how} by (namespace, inference) (label_replace({series}, "inference", "$1", "pod", "{_WHOSE}"))'


def _counted(metric: str) -> str:
    return _by_inference("sum", rate(of_pods(metric)))


_INFERENCE: Final = "{{namespace}}/{{inference}}"

WORK: Final = Dashboard(
    uid="tidegate-work",
    title="Tidegate / Near-line and offline",
    description="How far streams and batches are, how fast they go, and what had to be given up.",
    variables=(NAMESPACE, INFERENCE),
    rows=(
        Row(
            "Streams",
            (
                Panel(
                    title="Backlog",
                    description="Messages that no pod has yet. It is what the allocator gives near-line work slices for.",
                    queries=(
                        Query(_by_inference("max", of_pods("tidegate_agent_nearline_backlog")), _INFERENCE),
                    ),
                ),
                Panel(
                    title="Results",
                    description="Kept per second: the rate at which work is done.",
                    queries=(Query(_counted("tidegate_agent_nearline_results_total"), _INFERENCE),),
                    unit=Unit.PER_SECOND,
                ),
                Panel(
                    title="Late, and delivered again",
                    description="Results after their deadline, messages that came again, and those that pods gave back.",
                    queries=tuple(
                        Query(_counted(f"tidegate_agent_nearline_{what}_total"), f"{_INFERENCE} {what}")
                        for what in ("late", "redelivered", "returned")
                    ),
                    unit=Unit.PER_SECOND,
                ),
                Panel(
                    title="Held by pods",
                    description="At most maxInFlight of each.",
                    queries=(
                        Query(
                            f"sum by (namespace, pod) ({of_pods('tidegate_agent_nearline_in_flight')})", _POD
                        ),
                    ),
                ),
                Panel(
                    title="Busy",
                    description="Share of the time in which a pod asks its model. Near 1 with a backlog: give it replicas.",
                    queries=(
                        Query(
                            f"sum by (namespace, pod) ({rate(of_pods('tidegate_agent_nearline_busy_seconds_total'))})",
                            _POD,
                        ),
                    ),
                    unit=Unit.SHARE,
                    maximum=1,
                ),
                Panel(
                    title="Dead letters",
                    description="Messages that were given up, by reason: an alarm.",
                    queries=(
                        Query(
                            or_none(
                                f"sum by (namespace, reason) (increase({of_pods('tidegate_agent_nearline_dead_letters_total')}[{RATE}]))"
                            ),
                            "{{namespace}} {{reason}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Batches",
            (
                Panel(
                    title="Rows left",
                    description="Of the shards that pods are at; shards that wait are not in it.",
                    queries=(
                        Query(f"sum by (namespace, pod) ({of_pods('tidegate_batch_rows_left')})", _POD),
                    ),
                    stacked=True,
                ),
                Panel(
                    title="Rows done",
                    description="Per second, asked and written.",
                    queries=(
                        Query(
                            f"sum by (namespace, pod) ({rate(of_pods('tidegate_batch_rows_total'))})", _POD
                        ),
                    ),
                    unit=Unit.ROWS_PER_SECOND,
                    stacked=True,
                ),
                Panel(
                    title="Refused rows, and troubles",
                    description="Rows that the model does not take, and times that the store or the server failed and was tried again.",
                    queries=(
                        Query(
                            f"sum by (namespace, pod) ({rate(of_pods('tidegate_batch_rows_refused_total'))})",
                            f"{_POD} refused",
                        ),
                        Query(
                            f"sum by (namespace, pod) ({rate(of_pods('tidegate_batch_troubles_total'))})",
                            f"{_POD} troubles",
                        ),
                    ),
                    unit=Unit.PER_SECOND,
                ),
                Panel(
                    title="Share of a shard that is done",
                    description="By pod, those rows included that an earlier pod had written.",
                    queries=(
                        Query(
                            f"1 - {of_pods('tidegate_batch_rows_left')} / ({of_pods('tidegate_batch_shard_rows')} > 0)",
                            _POD,
                        ),
                    ),
                    unit=Unit.SHARE,
                    maximum=1,
                    width=12,
                ),
                Panel(
                    title="Requests of batches",
                    description="To the model beside each, repeated ones not counted.",
                    queries=(
                        Query(
                            f"sum by (namespace, pod) ({rate(of_pods('tidegate_batch_requests_total'))})",
                            _POD,
                        ),
                    ),
                    unit=Unit.REQUESTS_PER_SECOND,
                    width=12,
                ),
            ),
        ),
        Row(
            "Sample logs",
            (
                Panel(
                    title="Samples",
                    description="Taken, and confirmed by the sink.",
                    queries=(
                        Query(_counted("tidegate_agent_samples_total"), f"{_INFERENCE} taken"),
                        Query(_counted("tidegate_agent_samples_written_total"), f"{_INFERENCE} written"),
                    ),
                    unit=Unit.PER_SECOND,
                ),
                Panel(
                    title="Samples that wait",
                    description="For the sink; what they take is bounded, and then samples are dropped.",
                    queries=(
                        Query(
                            f"sum by (namespace, pod) ({of_pods('tidegate_agent_samples_held_bytes')})", _POD
                        ),
                    ),
                    unit=Unit.BYTES,
                ),
                Panel(
                    title="Samples dropped",
                    description="By reason; docs/reference/samples.md says what can be missing.",
                    queries=(
                        Query(
                            or_none(
                                f"sum by (namespace, reason) (increase({of_pods('tidegate_agent_samples_dropped_total')}[{RATE}]))"
                            ),
                            "{{namespace}} {{reason}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
