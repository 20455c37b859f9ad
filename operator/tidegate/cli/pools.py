"""`tidegate pools device-plugin-config`: what NVIDIA's device plugin has to be told so that a ComputePool has its slices."""

from typing import Annotated

import typer

SlicesPerGpu = Annotated[
    int, typer.Option("--slices-per-gpu", min=2, max=48, help="As spec.slice.mps.slicesPerGPU of the pool.")
]


def register(app: typer.Typer) -> None:
    """Adds the commands to `tidegate pools`."""
    app.command("device-plugin-config")(device_plugin_config)


def device_plugin_config(slices_per_gpu: SlicesPerGpu) -> None:
    """Print the key and the value to put into the device plugin's ConfigMap (its Helm values: config.map)."""
    import yaml

    from tidegate.resources.sharing.device_plugin import config_key, plugin_config

    text = yaml.safe_dump(plugin_config(slices_per_gpu), sort_keys=False)
    value = "".join(f"  {line}\n" for line in text.splitlines())
    typer.echo(f"{config_key(slices_per_gpu)}: |\n{value}", nl=False)
