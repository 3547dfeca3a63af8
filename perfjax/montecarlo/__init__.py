"""Random paths of the population: the model, sampled."""

from perfjax.montecarlo._counts import runs as runs
from perfjax.montecarlo._counts import simulate_counts as simulate_counts
from perfjax.montecarlo._inputs import as_key as as_key
from perfjax.montecarlo._users import simulate_users as simulate_users

__all__ = ["as_key", "runs", "simulate_counts", "simulate_users"]
