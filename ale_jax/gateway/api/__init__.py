"""The APIs that clients speak, one module for each; all are translated to `gateway.requests`."""
