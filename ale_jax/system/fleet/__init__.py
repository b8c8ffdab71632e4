"""Sandboxes on all nodes of a Ray cluster: a pool on every node, behind one `SandboxPool`."""
