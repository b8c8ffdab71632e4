"""ALE-JAX: the open Agentic Learning Ecosystem on JAX."""
