"""Accelerators that a run can be planned for."""

# GiB of one device that a program may have: what its maker states, less what system and compiler
# keep for themselves.
CHIPS = {"v5e": 15.5, "v5p": 94.0, "v6e": 31.0, "h100": 75.0, "h200": 133.0}
