"""The fleet demo: hundreds of simulated GPU nodes, a thousand Inferences and a day's load, without root and without a pod that runs."""
