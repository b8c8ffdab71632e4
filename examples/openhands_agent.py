"""OpenHands with its default tools: python3 openhands_agent.py TASK. See docs/agents.md."""

import os
import sys

from openhands.sdk import LLM, Conversation
from openhands.tools.preset.default import get_default_agent

if __name__ == "__main__":
    url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    model = LLM(model="openai/policy", base_url=url, api_key=key)
    agent = get_default_agent(llm=model, cli_mode=True)
    conversation = Conversation(agent=agent, workspace=os.getcwd())
    conversation.send_message(sys.argv[1])
    conversation.run()
