"""Better protection for larger groups: releases of group counts whose privacy budget falls with the group's size.

Counts of disjoint groups are released with an error of at most r max(n, 1) each. One person more or less changes one
count by one; v(n) is the zCDP budget of the edge between n - 1 and n, and falls with n.

| question | answer |
| --- | --- |
| How do I release counts? | `design`, `release`: `LogGaussian`, `LogAiry`, `Spacing`; for trials `simulate_release` |
| What does it cost a member of a group of n? | `edge_budget`, `edge_mu`, `epsilon`; k members: `path_budget` |
| What does it cost over several releases? | `accounting.compose_rho` of budgets at the counts of each release |
| How large is the error? | `clipped_error`, `clipped_mean`, `spacing_error`, each exactly |
| Could another release do better? | `best_lower_bound`, and the bounds that it is the best of |
| Which shift c? | `best_shift` |
| Does this noise have a budget at all orders? | `shift_renyi` |
| Which groups survive? | `unstable_count`, `error_that_saves`; `perfjax.ShiftedLogCount` in a scenario |

v(n) is a function of the private count: a simulation may use it, but whoever publishes it, or tells a member theirs,
reveals n.
"""

from perfjax.count_privacy.airy import (
    FISHER_INFORMATION,
    MEAN_ABSOLUTE,
    LogAiry,
    airy_budget,
    airy_log_density,
    airy_noise,
    airy_score_cumulant,
    airy_tail,
    log_airy_error,
    log_airy_sigma,
)
from perfjax.count_privacy.converses import (
    GAUSSIAN_PRIOR,
    LOG_GAUSSIAN,
    TWO_COUNTS,
    UNIFORM_PRIOR,
    LowerBounds,
    best_lower_bound,
    gaussian_prior_coefficient,
    gaussian_prior_limit,
    kl_bound,
    kl_test_bound,
    two_count_bound,
    two_count_limit,
    uniform_bound,
    uniform_limit,
    uniform_prior_bound,
)
from perfjax.count_privacy.feedback import (
    edge_leak_probability,
    error_that_saves,
    leak_split,
    unstable_count,
    unstable_multiplier,
)
from perfjax.count_privacy.fisher import (
    AIRY_SLOPE_ZERO,
    AIRY_ZERO,
    BEST_COEFFICIENT,
    HALF_LINE,
    WHOLE_LINE,
    fisher_bound,
    fisher_liminf,
    fisher_limsup,
    generalised_gaussian_coefficient,
)
from perfjax.count_privacy.log_gaussian import (
    LogGaussian,
    clip_aware_sigma,
    clipped_error,
    clipped_mean,
    drift_error,
    edge_budget,
    edge_mu,
    edge_renyi,
    error_of_count,
    log_gaussian_sigma,
    mu_of_count,
    path_budget,
    probability_of_zero,
)
from perfjax.count_privacy.orders import shift_renyi, unequal_gaussian_order, unequal_gaussian_renyi
from perfjax.count_privacy.priors import best_prior_bound, best_prior_by_logits, prior_bound
from perfjax.count_privacy.releases import DESIGNS, design, epsilon, release, simulate_release
from perfjax.count_privacy.spacing import LARGEST_TOLERANCE, Spacing, spacing_error
from perfjax.count_privacy.tradeoff import best_shift, weighted_budget

__all__ = [
    "AIRY_SLOPE_ZERO",
    "AIRY_ZERO",
    "BEST_COEFFICIENT",
    "DESIGNS",
    "FISHER_INFORMATION",
    "GAUSSIAN_PRIOR",
    "HALF_LINE",
    "LARGEST_TOLERANCE",
    "LOG_GAUSSIAN",
    "MEAN_ABSOLUTE",
    "TWO_COUNTS",
    "UNIFORM_PRIOR",
    "WHOLE_LINE",
    "LogAiry",
    "LogGaussian",
    "LowerBounds",
    "Spacing",
    "airy_budget",
    "airy_log_density",
    "airy_noise",
    "airy_score_cumulant",
    "airy_tail",
    "best_lower_bound",
    "best_prior_bound",
    "best_prior_by_logits",
    "best_shift",
    "clip_aware_sigma",
    "clipped_error",
    "clipped_mean",
    "design",
    "drift_error",
    "edge_budget",
    "edge_leak_probability",
    "edge_mu",
    "edge_renyi",
    "epsilon",
    "error_of_count",
    "error_that_saves",
    "fisher_bound",
    "fisher_liminf",
    "fisher_limsup",
    "gaussian_prior_coefficient",
    "gaussian_prior_limit",
    "generalised_gaussian_coefficient",
    "kl_bound",
    "kl_test_bound",
    "leak_split",
    "log_airy_error",
    "log_airy_sigma",
    "log_gaussian_sigma",
    "mu_of_count",
    "path_budget",
    "prior_bound",
    "probability_of_zero",
    "release",
    "shift_renyi",
    "simulate_release",
    "spacing_error",
    "two_count_bound",
    "two_count_limit",
    "unequal_gaussian_order",
    "unequal_gaussian_renyi",
    "uniform_bound",
    "uniform_limit",
    "uniform_prior_bound",
    "unstable_count",
    "unstable_multiplier",
    "weighted_budget",
]
