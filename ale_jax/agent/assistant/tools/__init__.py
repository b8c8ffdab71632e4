"""What the model can do: each tool is a class with a JSON schema."""
