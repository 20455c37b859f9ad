"""Run commands: their heavy imports live here, so that `--help` and shell completion stay fast."""
