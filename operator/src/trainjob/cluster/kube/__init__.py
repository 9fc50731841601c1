"""Jobs on a Kubernetes API server: one client, caches fed by watches, writes with preconditions."""
