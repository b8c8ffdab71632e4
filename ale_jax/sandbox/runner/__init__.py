"""The one trusted program inside a sandbox: it owns the bash session and touches the files.

It travels over its own stdin (see `ale_jax/sandbox/async_sandbox.py`), so an image needs bash, tar,
python3 and nothing of ours; hence the standard library and relative imports only. No process of the
agent ever holds its stdin and stdout: the agent writes into pipes that end here.
"""
