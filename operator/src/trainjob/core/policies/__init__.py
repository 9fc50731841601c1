"""The rules of a job's life, one file each: a policy returns a plan, or None to let the next one decide."""
