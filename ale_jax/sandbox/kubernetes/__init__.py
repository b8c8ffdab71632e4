"""Sandboxes that are pods of a Kubernetes cluster, each with a kernel of its own (gVisor or Kata).

cluster     calls of the API server, and the connection to a container's standard streams
manifest    what a pod is for a spec, and which specs are refused
machine     the pod while it runs
runtime     starts them
"""
