"""The only way out of a sandbox: a proxy on the host, whose policy says where connections may lead.

A sandbox has no network except its own loopback. What is sent to the proxy's port there arrives on
the host as byte streams. `proxy.EgressProxy` reads them as HTTP, and forwards or refuses them.
Names are resolved here and not in the sandbox. Whatever the policy permits, no connection leads to
this host or into a private network (`policy.refusal`), but for what the host's operator names
(`uplink.Uplink`).

The proxy cannot see the contents of a tunnel, except the server name in a TLS ClientHello. If one
address serves many sites and trusts the Host header over that name, a tunnel to one of them leads
to all of them. The proxy also does not know the addresses under which a gateway makes this host
public.
"""
