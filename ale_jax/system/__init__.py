"""The training run, from its config to its summary.

actors/ holds the Ray actors that play episodes; fleet/ runs sandboxes on all nodes of a Ray
cluster.
"""
