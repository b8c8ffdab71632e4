"""The Ray actors that play episodes, and the scheduler that submits episodes to them."""
