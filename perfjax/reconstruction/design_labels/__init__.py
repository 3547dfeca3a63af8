"""Designs that also tell whose record is whose: means over some of the records beside features of all of them.

Releases of all records do not change when two records swap places. A mean over some of them does; how far it moves,
in units of its noise, is what separates the two labellings. The bound of `perfjax.reconstruction.design` sees none of
this: it is local.
"""

from perfjax.reconstruction.design_labels._separation import closest_records as closest_records
from perfjax.reconstruction.design_labels._separation import profiled_separation as profiled_separation
from perfjax.reconstruction.design_labels._separation import swap_separations as swap_separations
from perfjax.reconstruction.design_labels._shares import label_risk as label_risk
from perfjax.reconstruction.design_labels._shares import least_label_risk as least_label_risk
from perfjax.reconstruction.design_labels._shares import minimal_shares as minimal_shares
from perfjax.reconstruction.design_labels._shares import separated_optimal as separated_optimal
from perfjax.reconstruction.design_labels._transcript import HybridTranscript as HybridTranscript

__all__ = [
    "HybridTranscript",
    "closest_records",
    "label_risk",
    "least_label_risk",
    "minimal_shares",
    "profiled_separation",
    "separated_optimal",
    "swap_separations",
]
