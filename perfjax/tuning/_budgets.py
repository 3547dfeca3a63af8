"""What the noise that was found costs in privacy, for results to print beside what they promise."""

from perfjax.meanfield import mean_field
from perfjax.privacy import budget_lines
from perfjax.scenario import Scenario

__all__ = ["printed_budgets"]


def printed_budgets(scenario: Scenario) -> str:
    """The budgets of a scenario's releases with the users expected, as further lines of a printed result."""
    return "".join(f"\n  {line}" for line in budget_lines(mean_field(scenario).privacy()))
