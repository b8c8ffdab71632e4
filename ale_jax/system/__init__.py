"""The training run, from its config to its summary.

actors/ holds the Ray actors that play its episodes; fleet/ the sandboxes of a whole Ray cluster.

Shape suffixes:
    B  rows of packed tokens
    C  chunks of a trajectory
    J  segments of a row, at most
    T  tokens of a row
"""
