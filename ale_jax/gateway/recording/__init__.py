"""What an agent and a model said to each other over HTTP, recorded and played back.

    python -m ale_jax.gateway.recording record URL FILE    stands before the API at URL
    python -m ale_jax.gateway.recording replay FILE        answers as the recording has it

The second one tests an agent without a model. At Ctrl-C it says how many calls were not made, and
exits with 1 if there are any.
"""
