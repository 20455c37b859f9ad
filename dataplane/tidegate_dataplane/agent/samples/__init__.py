"""The sample log of the pod: records come from the runners in Triton, and go to the tenant's sink."""
