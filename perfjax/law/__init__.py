"""The law of the population: its whole distribution at every release, without sampling."""

from perfjax.law._control import Chain as Chain
from perfjax.law._control import chain_of as chain_of
from perfjax.law._law import PopulationLaw as PopulationLaw
from perfjax.law._law import check_law as check_law
from perfjax.law._law import law_of as law_of
from perfjax.law._law import population_law as population_law
from perfjax.law._law import whole_cap as whole_cap

__all__ = ["Chain", "PopulationLaw", "chain_of", "check_law", "law_of", "population_law", "whole_cap"]
