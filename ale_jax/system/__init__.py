"""The training run, from its config to its summary.

actors/ holds the Ray actors that play episodes; hosts/ joins the processes of a run; doctor/ checks
what a run needs; fleet/ runs sandboxes on all nodes of a Ray cluster.

Shape suffixes:
    B  rows of packed tokens
    C  chunks of a trajectory
    D  width of the policy
    J  segments of a row, at most
    P  prefix turns of a trajectory
    T  tokens of a row
    V  vocabulary
"""
