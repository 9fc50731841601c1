"""What the commands for a cluster share: the connection, its answers in words, watching, and logs.

Only `server` and `connection` import the Kubernetes client, and they are imported when a command first asks
the cluster: help, and mistakes in files, don't wait for it.
"""
