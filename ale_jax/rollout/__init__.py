"""What a rollout worker does: it plays one episode, and asks the gateway for replies."""
