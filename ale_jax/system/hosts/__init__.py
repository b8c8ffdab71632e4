"""A run of several processes: how they find each other, agree on one order of work, and end."""
