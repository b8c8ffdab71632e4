"""What it gains that sampling and learning share the devices, if environments wait."""
