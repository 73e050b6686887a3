"""References: programs that do a part of the service's work and nothing else."""
