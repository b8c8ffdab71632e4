"""Whether a machine, or all machines of a run, can run a config: one line for each check."""
