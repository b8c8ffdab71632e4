"""The only way out of a sandbox: a proxy on the host, with a policy of where it may lead.

A sandbox has no network but its own loopback. What is sent to the proxy's port there comes to the
host as streams of bytes. `proxy.EgressProxy` reads them as HTTP, and passes them on or refuses.
Names are resolved here and not in the sandbox. Whatever the policy says, no connection leads to
this host or into a private network (`addresses.py`).

What it does not see: what is said in a tunnel, but for the server name in a TLS hello. Where one
address serves many sites, and believes the Host header more than that name, a tunnel to one of
them leads to all. Nor does it know the addresses under which a gateway makes this host public.
"""
