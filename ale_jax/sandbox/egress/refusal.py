"""What a sandbox is told when it does not get what it asked for."""

from __future__ import annotations


class Refusal(Exception):
    """status: of HTTP. rule: which one refused, in one word. line: the same in plain words.

    Nothing of the request is in a line but the host and the port, in canonical spelling: the rest
    may be secret, or an attack on whoever reads the line.
    detail: for the host's eyes only.
    """

    def __init__(self, status: int, rule: str, line: str, detail: str = ""):
        super().__init__(line)
        self.status, self.rule, self.line, self.detail = status, rule, line, detail

    @property
    def kind(self) -> str:
        """Of the event: the far side failed, or the near side was refused."""
        return "egress_failed" if self.status in (502, 504) else "egress_refused"

    def answer(self) -> bytes:
        """The line is the reason phrase as well: most clients show no more of a refused CONNECT."""
        body = f"{self.line}\n"
        head = (
            f"HTTP/1.1 {self.status} {self.line}",
            "Content-Type: text/plain",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        return ("\r\n".join(head) + "\r\n\r\n" + body).encode("ascii")


def malformed(line: str) -> Refusal:
    return Refusal(400, "request", line)
