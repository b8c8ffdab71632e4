"""A world with a tool: a drawer is opened in each of two turns, and the left one holds a coin."""

from ale_jax.worlds import Call, Message, Seeds, Step, World, write_reply

OPEN = {
    "type": "function",
    "function": {
        "name": "open",
        "description": "Open a drawer.",
        "parameters": {
            "type": "object",
            "properties": {"drawer": {"enum": ["left", "right"]}},
            "required": ["drawer"],
            "additionalProperties": False,
        },
    },
}


class Drawers(World):
    families = {"drawers": Seeds()}  # noqa: RUF012
    role = "tool"
    must_call = True

    def tools(self, item):
        return (OPEN,)

    def reset(self, item, sandbox):
        self.turn, self.opened = 0, 0
        return "Find the coins."

    def step(self, reply):
        self.turn += 1
        if not reply.calls:
            return Step("call open", malformed=True, done=self.turn == 2)
        found = [call.arguments["drawer"] == "left" for call in reply.calls]
        self.opened += len(found)
        seen = [Message("tool", "a coin" if each else "nothing") for each in found]
        return Step(seen, reward=sum(found) / len(found) / 2, done=self.turn == 2)

    def metrics(self):
        return {"opened": self.opened}

    def oracle(self, item):
        return [write_reply("", [Call("open", {"drawer": "left"})])] * 2
