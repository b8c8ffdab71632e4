"""The registry of sandbox images: built from recipes, named by content, once per node, and
tested."""
