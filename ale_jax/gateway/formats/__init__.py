"""How families of models write tool calls and thoughts, one module for each."""
