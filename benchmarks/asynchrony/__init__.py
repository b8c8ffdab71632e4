"""What asynchrony does for the speed of a run, in simulated time and by real runs."""
