"""The numbered results of "Performative Privacy: When Differential Privacy Maximizes Utility", as functions.

Closed forms on arrays: nothing here simulates or integrates. Where a result needs the marginal leak
probability or a growth factor, that is an argument. Each docstring says whether the result is exact, a bound
(and when it stops being one) or a mean-field approximation. `RESULTS` maps the paper's names to the
functions; the first one states the result.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from perfjax.theorems.horizon import (
    clipping_bias_bound,
    cumulative_bound,
    log_cumulative_bound,
    log_geometric_sum,
    long_run_error_bound,
    noise_deviation_bound,
    pac_rounds,
    sampling_deviation_bound,
    zero_noise_error,
)
from perfjax.theorems.membership import (
    PrivacyLossLaw,
    gaussian_dp,
    leak_probability_given_distance,
    mahalanobis_error,
    membership_tail_bound,
    optimal_order,
    optimal_tail_bound,
    privacy_loss_law,
    renyi_divergence,
    renyi_tail_bound,
    threshold_at_false_positive_rate,
)
from perfjax.theorems.population import (
    ErrorBounds,
    critical_noise_scale,
    error_bounds,
    expected_population,
    growth_factor,
    growth_is_increasing,
    kantorovich_factor,
)
from perfjax.theorems.randomized_response import (
    critical_epsilon,
    critical_perturbation,
    epsilon_from_perturbation,
    perturbation,
    response_error,
    response_rate,
    unbiased_estimate,
)

__all__ = [
    "RESULTS",
    "ErrorBounds",
    "PrivacyLossLaw",
    "clipping_bias_bound",
    "critical_epsilon",
    "critical_noise_scale",
    "critical_perturbation",
    "cumulative_bound",
    "epsilon_from_perturbation",
    "error_bounds",
    "expected_population",
    "gaussian_dp",
    "growth_factor",
    "growth_is_increasing",
    "kantorovich_factor",
    "leak_probability_given_distance",
    "log_cumulative_bound",
    "log_geometric_sum",
    "long_run_error_bound",
    "mahalanobis_error",
    "membership_tail_bound",
    "noise_deviation_bound",
    "optimal_order",
    "optimal_tail_bound",
    "pac_rounds",
    "perturbation",
    "privacy_loss_law",
    "renyi_divergence",
    "renyi_tail_bound",
    "response_error",
    "response_rate",
    "sampling_deviation_bound",
    "threshold_at_false_positive_rate",
    "unbiased_estimate",
    "zero_noise_error",
]

RESULTS: Mapping[str, tuple[Callable, ...]] = MappingProxyType(
    {
        "Lemma 1": (perturbation, epsilon_from_perturbation),
        "Lemma 2": (expected_population, growth_factor),
        "Lemma 3": (mahalanobis_error,),
        "Lemma 4": (renyi_tail_bound,),
        "Lemma 5": (membership_tail_bound, optimal_order, optimal_tail_bound),
        "Lemma 6": (privacy_loss_law,),
        "Lemma 7": (leak_probability_given_distance,),
        "Lemma 8": (expected_population, growth_factor),
        "Lemma 9": (cumulative_bound, log_cumulative_bound, log_geometric_sum),
        "Lemma 10": (unbiased_estimate, response_rate, response_error),
        "Lemma 11": (renyi_divergence,),
        "Lemma 12": (growth_is_increasing,),
        "Theorem 1": (critical_perturbation, critical_epsilon),
        "Theorem 2": (critical_noise_scale,),
        "Theorem 3": (error_bounds, kantorovich_factor),
        "Theorem 4": (pac_rounds, clipping_bias_bound, sampling_deviation_bound, noise_deviation_bound),
        "Corollary 1": (zero_noise_error,),
        "Corollary 2": (long_run_error_bound,),
        "Remark 1": (gaussian_dp, threshold_at_false_positive_rate),
    }
)
