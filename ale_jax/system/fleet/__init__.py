"""The sandboxes of a whole Ray cluster: a pool on every node, behind one `SandboxPool`."""
