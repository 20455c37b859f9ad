"""`python -m tidegate_localcluster.fleet_demo`: what `make demo-fleet` runs."""

from tidegate_localcluster.fleet_demo.cli import app

if __name__ == "__main__":
    app(prog_name="tidegate demo-fleet")
