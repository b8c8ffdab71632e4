"""`ale-agent`: an agent that people use against any OpenAI-compatible endpoint, ours included.

Everything that happens in a session is an event. The log, the model's messages, the terminal, the
streams and the export are made of nothing else, so a session that is resumed equals one that was
never interrupted.
"""
