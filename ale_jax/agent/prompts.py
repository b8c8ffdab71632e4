"""What the policy is told before a shell task. Short: a small model pays for every token of it."""

SYSTEM_PROMPT = "Work in the shell with bash(command); when done, call finish(answer)."
