"""Random paths of the population: the model, sampled."""

from perfjax.montecarlo._counts import simulate_counts as simulate_counts
from perfjax.montecarlo._users import simulate_users as simulate_users

__all__ = ["simulate_counts", "simulate_users"]
