"""What repeated releases reveal: Fisher information, Cramér-Rao bounds and the estimators that attain them.

A transcript y = q(x) + w of L Gaussian releases, each with variance κ_L Δ_l²: what can be told from it is geometry
(which directions, by the Jacobian of q in units of the noise), how precisely is the accountant's (`accounting.kappa`).

| question | functions |
| --- | --- |
| any differentiable releases, one target | `transcript_jacobian`, `profiled_information`, `target_bound` |
| what more releases would add | `information_gain` |
| a target, with what must stand beside its bound | `target_risk` |
| one labelled record, subsets with and without it | `in_out_risk`, `balanced_risk`, `basic_allocation_risk` |
| the multiset of all records | `multiset_bound`, `scan_releases`, and closed forms for moments |
| what an attacker really gets | `pair_estimate`, `multiset_estimate` |
| what binds biased attackers too | `van_trees_bound`, `multiset_van_trees_bound`, `label_floor`; `trivial_risk` |
| all of this about some records at once | `assess` |
| which releases reveal most | `design`, and `design_labels` for telling whose record is whose |
| records from a file | `records` |
| why a bound is infinite | `Reason`: `target_reason`, `multiset_reason`; `label_twins` |

Bounds are infinite where the target is not identified, never an exception and never a large number. They are local
and hold for unbiased estimators: at small budgets always answering the centre does better.
"""

from perfjax.reconstruction import assessment, design, design_labels, records
from perfjax.reconstruction._box_estimate import MultisetEstimate, multiset_estimate
from perfjax.reconstruction._contrast import (
    exchangeable_information,
    one_contrast_information,
    subset_means_information,
)
from perfjax.reconstruction._families import AbstractFamily, FeatureMeans, Moments, Thresholds
from perfjax.reconstruction._fisher import (
    contrast_bound,
    information_gain,
    profiled_information,
    schur_information,
    split_columns,
    target_bound,
    target_reason,
    transcript_jacobian,
    whitened,
)
from perfjax.reconstruction._labelled import (
    additive_risk,
    balanced_risk,
    basic_allocation,
    basic_allocation_risk,
    basic_free_delta,
    calibrated_risk,
    in_out_estimate,
    in_out_risk,
    in_out_split,
)
from perfjax.reconstruction._labels import label_twins
from perfjax.reconstruction._moments import (
    boundary_pair_bound,
    coordinate_bound,
    determinant_bound,
    interior_bound,
    moment_energy,
    pair_bound,
    pair_determinant,
    two_moment_bound,
    two_moment_estimate,
)
from perfjax.reconstruction._multiset import (
    label_floor,
    multiset_bound,
    multiset_information,
    multiset_reason,
    trace_bound,
    transcript_rows,
)
from perfjax.reconstruction._pair_estimate import pair_estimate
from perfjax.reconstruction._priors import multiset_van_trees_bound, trivial_risk, van_trees_bound
from perfjax.reconstruction._reasons import Reason
from perfjax.reconstruction._scan import ReleaseScan, ScanStatus, scan_releases
from perfjax.reconstruction._steps import AbstractStep, Bump, Logistic, Smoothstep
from perfjax.reconstruction._target_risk import TargetRisk, target_risk
from perfjax.reconstruction.assessment import assess

__all__ = [
    "AbstractFamily",
    "AbstractStep",
    "Bump",
    "FeatureMeans",
    "Logistic",
    "Moments",
    "MultisetEstimate",
    "Reason",
    "ReleaseScan",
    "ScanStatus",
    "Smoothstep",
    "TargetRisk",
    "Thresholds",
    "additive_risk",
    "assess",
    "assessment",
    "balanced_risk",
    "basic_allocation",
    "basic_allocation_risk",
    "basic_free_delta",
    "boundary_pair_bound",
    "calibrated_risk",
    "contrast_bound",
    "coordinate_bound",
    "design",
    "design_labels",
    "determinant_bound",
    "exchangeable_information",
    "in_out_estimate",
    "in_out_risk",
    "in_out_split",
    "information_gain",
    "interior_bound",
    "label_floor",
    "label_twins",
    "moment_energy",
    "multiset_bound",
    "multiset_estimate",
    "multiset_information",
    "multiset_reason",
    "multiset_van_trees_bound",
    "one_contrast_information",
    "pair_bound",
    "pair_determinant",
    "pair_estimate",
    "profiled_information",
    "records",
    "scan_releases",
    "schur_information",
    "split_columns",
    "subset_means_information",
    "target_bound",
    "target_reason",
    "target_risk",
    "trace_bound",
    "transcript_jacobian",
    "transcript_rows",
    "trivial_risk",
    "two_moment_bound",
    "two_moment_estimate",
    "van_trees_bound",
    "whitened",
]
