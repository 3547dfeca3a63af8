"""The law of the population: its whole distribution at every release, without sampling."""

from perfjax.law._law import PopulationLaw as PopulationLaw
from perfjax.law._law import law_of as law_of
from perfjax.law._law import population_law as population_law

__all__ = ["PopulationLaw", "law_of", "population_law"]
