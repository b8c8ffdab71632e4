"""The training run, from its config to its summary.

actors/ holds the Ray actors that play episodes; hosts/ joins the processes of a run; doctor/ checks
what a run needs; fleet/ runs sandboxes on all nodes of a Ray cluster.

Shape suffixes are those of `ale_jax.records`.
"""
