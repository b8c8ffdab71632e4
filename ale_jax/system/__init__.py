"""The training run, from its config to its summary.

actors/ holds the Ray actors that play its episodes; fleet/ the sandboxes of a whole Ray cluster.
"""
