"""`tidegate bench`: a bounded load test, for a first impression and for pipelines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.completion import CompletedKind, complete_names
from tidegate.cli.connection import open_client
from tidegate.cli.options import (
    Everywhere,
    ExitStatus,
    KubeOptions,
    NameAfterKind,
    Output,
    OutputFormat,
    SystemNamespace,
    print_report,
    run_or_exit,
)

if TYPE_CHECKING:
    from tidegate.reports.bench import BenchReport
    from tidegate.services.load_tests import BenchRequest

_MAX_SECONDS = 300.0


def register_commands(app: typer.Typer) -> None:
    """Add the command to `tidegate`."""
    app.command("bench")(bench)


@with_cluster_options
def bench(
    target: Annotated[
        str,
        typer.Argument(
            metavar="INFERENCE|URL",
            help="Name, namespace/name, inference/name, or grpc://host:port.",
            autocompletion=complete_names(CompletedKind.INFERENCE),
        ),
    ],
    name: NameAfterKind = None,
    duration: Annotated[str, typer.Option("--for", help="Duration, at most 5m.")] = "10s",
    concurrency: Annotated[
        int, typer.Option(min=1, max=1024, help="Requests at once; with --rate, the most at once.")
    ] = 8,
    rate: Annotated[
        float | None,
        typer.Option(min=0.1, max=50_000, help="Requests per second, independent of the answers."),
    ] = None,
    p99: Annotated[
        str | None, typer.Option("--p99", help="Exit status 1 if p99 is above this, like 30ms.")
    ] = None,
    errors: Annotated[
        str | None, typer.Option("--errors", help="Exit status 1 if a larger share fails, like 0.1%.")
    ] = None,
    access: Annotated[
        str | None,
        typer.Option(
            "--access", help="Send the requests for this ModelAccess through a gateway, not to a replica."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Model name in requests; default the Inference's.")
    ] = None,
    pod: Annotated[str | None, typer.Option(help="Replica to test; default the first ready one.")] = None,
    rows: Annotated[int, typer.Option(min=1, max=4096, help="Rows of each request.")] = 1,
    length: Annotated[int, typer.Option(min=1, max=65536, help="Length of other free dimensions.")] = 1,
    largest: Annotated[int, typer.Option(min=0, help="Largest whole number in inputs, such as an id.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    system: SystemNamespace = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the Inference; default that of the context."),
    ] = None,
    everywhere: Everywhere = False,
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Send random requests to one replica, or through a gateway, for a while: requests per second, latency, errors.

    The load comes from this machine, so the result is not the most a model can do. Real callers share the server with it.
    """
    from tidegate.api.durations import parse_duration
    from tidegate.cli.object_names import join_kind
    from tidegate.planning.diagnosis.bench import LoadSpec
    from tidegate.planning.diagnosis.calibration import RandomInputs
    from tidegate.reports.bench import BenchLimits
    from tidegate.services.load_tests import BenchRequest

    try:
        seconds = parse_duration(duration).total_seconds()
        limit_s = None if p99 is None else parse_duration(p99).total_seconds()
        share = None if errors is None else parse_share(errors)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not 0 < seconds <= _MAX_SECONDS:
        message = f"--for {duration}: must be between 1ms and 5m"
        raise typer.BadParameter(message)
    request = BenchRequest(
        target=join_kind(target, name),
        load=LoadSpec(seconds, concurrency, rate),
        inputs=RandomInputs(rows, length, largest, seed),
        limits=BenchLimits(limit_s, share),
        model=model,
        access=access,
        pod=pod,
        system_namespace=system,
    )
    report = run_or_exit(_run_load_test(request, KubeOptions(namespace, everywhere, cluster)))
    print_report(report, output)
    if not report.passed:
        sys.exit(ExitStatus.FINDING)


async def _run_load_test(request: BenchRequest, options: KubeOptions) -> BenchReport:
    from tidegate.cli.object_names import find_key
    from tidegate.kube.kinds import INFERENCE
    from tidegate.services.load_tests import GRPC_SCHEME, bench_address, bench_inference

    if request.target.startswith(GRPC_SCHEME):
        return await bench_address(request)
    async with open_client(options) as (client, default_namespace):
        key = await find_key(client, request.target, options, default_namespace, INFERENCE)
        return await bench_inference(client, key, request)


def parse_share(text: str) -> float:
    """Parse a share such as `0.1%` or `0.001`. Raises ValueError if the text is neither."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        message = f"--errors {text}: want a share, like 0.1% or 0.001"
        raise ValueError(message)
    return share
