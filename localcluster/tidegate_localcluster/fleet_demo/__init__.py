"""The fleet demo: hundreds of simulated GPU nodes, a thousand Inferences and a day's load.

It needs no root and runs no pods.
"""
