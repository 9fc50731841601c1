"""How the replicas of a job connect and agree."""
