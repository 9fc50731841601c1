"""Policies of a job's life cycle: a policy returns a plan, or None to let the next one decide."""
