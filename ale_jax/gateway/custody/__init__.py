"""The custody of tokens: what the policy read and wrote in each episode, as the ids that it was.

Agents exchange text. The ids never leave this process and are never recomputed from text.
"""
