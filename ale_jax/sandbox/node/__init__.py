"""A pool in a process of its own, which the service's front ends come and go before.

`process.py` starts and finds that process by its directory, `server.py` is its side of the unix
socket, `client.py` the front end's, and `frames.py` what passes between them. Only the process that
owns a directory's pool ends its sandboxes; a front end holds nothing that is lost with it.
"""
