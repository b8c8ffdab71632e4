"""The Ray actors that play episodes, and what submits episodes to them."""
