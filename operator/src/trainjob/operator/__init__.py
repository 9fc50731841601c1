"""The controller as a process in a cluster: kopf around the work loop, election, health, metrics."""
