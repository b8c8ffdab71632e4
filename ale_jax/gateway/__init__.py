"""The door through which any agent talks to the policy, and the ids of what was said there."""
