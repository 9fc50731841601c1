"""How the replicas of a job find each other and agree."""
