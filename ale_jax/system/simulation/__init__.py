"""A run on a simulated clock: the real scheduler, gate and buffer, and worlds that only take
time."""
