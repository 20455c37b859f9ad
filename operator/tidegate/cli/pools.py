"""`tidegate pools device-plugin-config`: the configuration of NVIDIA's device plugin for a ComputePool."""

from typing import Annotated

import typer

from tidegate.cli.options import Output, OutputFormat, print_report

SlicesPerGpu = Annotated[
    int,
    typer.Option("--slices-per-gpu", min=2, max=48, help="Value of the pool's spec.slice.mps.slicesPerGPU."),
]


def register_commands(app: typer.Typer) -> None:
    """Add the commands to `tidegate pools`."""
    app.command("device-plugin-config")(device_plugin_config)


def device_plugin_config(slices_per_gpu: SlicesPerGpu, output: Output = OutputFormat.TEXT) -> None:
    """Print the key and the value to put into the device plugin's ConfigMap (its Helm values: config.map)."""
    from tidegate.reports.device_plugin import DevicePluginReport
    from tidegate.resources.slices import make_config_key, make_plugin_config

    print_report(
        DevicePluginReport(key=make_config_key(slices_per_gpu), config=make_plugin_config(slices_per_gpu)),
        output,
    )
