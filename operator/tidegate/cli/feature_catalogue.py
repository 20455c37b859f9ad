"""`tidegate features list` and `explain`: the features of FeatureComputes, how they are made, and what uses them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.cluster_options import ClusterOptions, with_cluster_options
from tidegate.cli.completion import CompletedKind, complete_names
from tidegate.cli.connection import open_client
from tidegate.cli.options import (
    AllNamespaces,
    KubeOptions,
    Output,
    OutputFormat,
    print_report,
    run_or_exit,
)

if TYPE_CHECKING:
    from tidegate.reports.feature_lineage import FeatureExplanation
    from tidegate.reports.feature_list import FeatureListReport

ManifestFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--filename",
        "-f",
        help="Manifest to read instead of a cluster; a folder, or - for stdin; may be repeated.",
    ),
]
FeaturesNamespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace of the objects; default that of the context. With -f, show this namespace alone, and put objects that name none into it.",
    ),
]


def register_commands(app: typer.Typer) -> None:
    """Add the commands to `tidegate features`."""
    app.command("list")(list_features)
    app.command("explain")(explain_features)


@with_cluster_options
def list_features(
    files: ManifestFiles = None,
    namespace: FeaturesNamespace = None,
    everywhere: AllNamespaces = False,
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """List all features: how each is made and of what, its type, and the features and models that use it.

    A FeatureCompute whose plan does not compile is listed with its error.
    """
    options = KubeOptions(namespace, everywhere, cluster)
    if files:
        _refuse_cluster_options(options)
    print_report(run_or_exit(_list_features(files or (), options)), output)


@with_cluster_options
def explain_features(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME[.FEATURE]",
            help="Name of a FeatureCompute, or namespace/name, and one of its features; default all of them.",
            autocompletion=complete_names(CompletedKind.FEATURES),
        ),
    ],
    files: ManifestFiles = None,
    namespace: FeaturesNamespace = None,
    everywhere: AllNamespaces = False,
    output: Output = OutputFormat.TEXT,
    *,
    cluster: ClusterOptions,
) -> None:
    """Explain features: the tables, streams and features that each is made of, how current these are, and what reads it."""
    options = KubeOptions(namespace, everywhere, cluster)
    if files:
        _refuse_cluster_options(options)
    print_report(run_or_exit(_explain_features(name, files or (), options)), output)


def _refuse_cluster_options(options: KubeOptions) -> None:
    cluster = options.cluster
    given = {
        "-A": options.everywhere,
        "--kubeconfig": cluster.kubeconfig is not None,
        "--context": cluster.context is not None,
        "--as": bool(cluster.acting_for),
        "--as-group": bool(cluster.groups),
        "--request-timeout": cluster.request_timeout is not None,
    }
    if names := [name for name, is_given in given.items() if is_given]:
        message = f"-f reads files: leave {' and '.join(names)} out"
        raise typer.BadParameter(message)


async def _list_features(files: Sequence[Path], options: KubeOptions) -> FeatureListReport:
    from tidegate.services import feature_catalogue

    if files:
        catalogue = feature_catalogue.load_catalogue(
            files, options.namespace or "default", selected=options.namespace or ""
        )
        return feature_catalogue.list_features(catalogue)
    async with open_client(options) as (client, namespace):
        within = "" if options.everywhere else namespace
        return feature_catalogue.list_features(await feature_catalogue.read_catalogue(client, within))


async def _explain_features(text: str, files: Sequence[Path], options: KubeOptions) -> FeatureExplanation:
    from tidegate.api.meta import ObjectKey
    from tidegate.cli.object_names import parse_target_name
    from tidegate.kube.kinds import FEATURE_COMPUTE
    from tidegate.services import feature_catalogue

    object_text, _, feature = text.partition(".")
    name = parse_target_name(object_text, (FEATURE_COMPUTE,))
    if files:
        catalogue = feature_catalogue.load_catalogue(files, options.namespace or "default")
        key = ObjectKey(name.namespace or options.namespace or "", name.name)
        return feature_catalogue.explain_feature(catalogue, key, feature)
    async with open_client(options) as (client, namespace):
        within = "" if options.everywhere else name.namespace or namespace
        catalogue = await feature_catalogue.read_catalogue(client, within)
        key = ObjectKey(name.namespace or within, name.name)
        return feature_catalogue.explain_feature(catalogue, key, feature)
