"""The only trusted program inside a sandbox: it owns the bash sessions and accesses the files.

The host sends its source over its stdin (see `ale_jax/sandbox/async_sandbox.py`), so an image needs
only bash, tar and python3. It may therefore import only the standard library and its own modules
(relatively). Processes of the agent never hold the runner's stdin and stdout: they write into pipes
that the runner reads.
"""
