"""What an agent and a model said to each other over HTTP, recorded and played back.

    python -m ale_jax.gateway.recording record URL FILE    stands before the API at URL
    python -m ale_jax.gateway.recording replay FILE        answers as the recording has it

With the second, an agent is tested without a model. It is told how many calls were not made, and
exits with 1 if there are any.
"""
