"""The registry of sandbox images: built from recipes by content, once per node, and proved."""
