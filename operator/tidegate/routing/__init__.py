"""From the state of the fleet to the resources that Envoy runs: values in, values out."""
