"""`tidegate calibrate`: how many requests per second one replica of an Inference answers within its SLO."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.completion import CompletedKind, complete_names
from tidegate.cli.connection import open_client
from tidegate.cli.duration_option import parse_duration_option
from tidegate.cli.options import (
    Everywhere,
    ExitStatus,
    KubeOptions,
    NameAfterKind,
    Namespace,
    Output,
    OutputFormat,
    print_report,
    run_or_exit,
)

if TYPE_CHECKING:
    from tidegate.reports.calibration import CalibrationReport

Name = Annotated[
    str,
    typer.Argument(
        metavar="INFERENCE",
        help="Name, namespace/name, or inference/name.",
        autocompletion=complete_names(CompletedKind.INFERENCE),
    ),
]


@with_cluster_options
def calibrate(
    inference: Name,
    name: NameAfterKind = None,
    slo: Annotated[
        str | None, typer.Option(help="Highest p99, like 30ms; default spec.slo.latencyP99.")
    ] = None,
    pod: Annotated[str | None, typer.Option(help="Replica to measure; default the first ready one.")] = None,
    address: Annotated[
        str | None,
        typer.Option(help="host:port of a replica's gRPC server, to bypass the API server."),
    ] = None,
    max_concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Most requests at once.")] = 64,
    step_seconds: Annotated[float, typer.Option(min=1, max=60, help="Seconds at each concurrency.")] = 5.0,
    total_seconds: Annotated[float, typer.Option(min=1, max=900, help="Seconds in all, at most.")] = 90.0,
    rows: Annotated[int, typer.Option(min=1, max=4096, help="Rows of each request.")] = 1,
    length: Annotated[int, typer.Option(min=1, max=65536, help="Length of other free dimensions.")] = 1,
    largest: Annotated[int, typer.Option(min=0, help="Largest whole number in inputs, such as an id.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    together: Annotated[
        bool,
        typer.Option(
            "--together", help="Then measure 2, 4, 8, … and all ready replicas at the same time, too."
        ),
    ] = False,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Measure what one replica answers within the SLO: random requests, more and more at once, through its own port.

    With --together it then loads several replicas at once, because n that share a node or a GPU answer less than n times one; --total-seconds counts for each part. Progress goes to stdout, or to stderr when the result is JSON, YAML or a name. Live traffic on the replica lowers the result and is slowed down by the test, so pick a replica that serves none.
    """
    # The load generator takes a second to import, which --help should not.
    from tidegate.cli.object_names import find_key, join_kind
    from tidegate.kube.kinds import INFERENCE
    from tidegate.planning.diagnosis.calibration import RandomInputs
    from tidegate.services.calibration import CalibrationRequest, RampLimits, calibrate_inference

    text = join_kind(inference, name)
    if together and (pod is not None or address is not None):
        raise typer.BadParameter(
            "it measures all ready replicas: leave out --pod and --address", param_hint="--together"
        )
    ramp = RampLimits(max_concurrency, step_seconds, total_seconds)
    inputs = RandomInputs(rows, length, largest, seed)
    limit_s = None if slo is None else parse_duration_option(f"--slo {slo}", slo).total_seconds()
    options = KubeOptions(namespace, everywhere, cluster)

    def print_step(step: str) -> None:
        typer.echo(step, err=output not in {OutputFormat.TEXT, OutputFormat.WIDE})

    async def measure_replica() -> CalibrationReport:
        async with open_client(options) as (client, default_namespace):
            key = await find_key(client, text, options, default_namespace, INFERENCE)
            request = CalibrationRequest(key, ramp, inputs, limit_s, pod, address, together)
            return await calibrate_inference(client, request, print_step)

    report = run_or_exit(measure_replica())
    print_report(report, output)
    if report.requests_per_second is None:
        sys.exit(ExitStatus.FINDING)
