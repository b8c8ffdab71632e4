"""Reads traces as their format asks: a JSON array that may end after any event."""

import json


def trace_events(path):
    """All whole events of a trace."""
    text = path.read_text()
    text = text[: text.rindex("}") + 1] if text.endswith("\n") else text[: text.rindex("\n")]
    return json.loads(text.rstrip().removesuffix(",") + "]")


def assert_nested(events):
    """Spans of a lane follow one another, or one is within the other."""
    lanes = {}
    for event in events:
        if event["ph"] == "X":
            lanes.setdefault(event["tid"], []).append(event)
    for own in lanes.values():
        around = []  # ends
        for event in sorted(own, key=lambda event: (event["ts"], -event["dur"])):
            start, end = event["ts"], event["ts"] + event["dur"]
            while around and around[-1] <= start:
                around.pop()
            assert not around or end <= around[-1], event
            around.append(end)
    return lanes
