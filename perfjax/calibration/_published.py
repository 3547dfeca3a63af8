"""Real input that ships with perfjax; its sources are named in the files."""

import numpy as np

from perfjax._csv import read_table, shipped
from perfjax.calibration._columns import load_series
from perfjax.calibration._priors import Beta
from perfjax.calibration._series import Series

__all__ = ["published_series", "survey_prior"]

PEOPLE = 18  # what the survey's share counts for: another country, another service, another kind of leak


def published_series(column: str = "persons") -> Series:
    """The UK Labour Force Survey: achieved interviews per quarter, January 2021 to September 2023.

    July to September 2022 is missing; quarters marked `derived` follow from the next count and its published change.

    Args:
        column: "persons" or "households".

    Returns:
        The series, without noise.

    Raises:
        ValueError: for another column.

    Source: Office for National Statistics, Labour Force Survey performance and quality monitoring reports.

    Example:
        >>> print(published_series())
        Series of 11 rounds, 2021-01 to 2023-07, 1 missing
    """
    with shipped("lfs_participation.csv") as path:
        return load_series(path, column=column, time="quarter")


def survey_prior() -> Beta:
    """A prior for leave: 11 % of those notified of a breach stopped dealing with the company, worth 18 people.

    Returns:
        Beta(2, 16), to rounding. How many people it counts for is ours: a survey about other services is weak evidence.

    Source: RAND RR1187 (2016), Consumer Attitudes Toward Data Breach Notifications.

    Example:
        >>> prior = survey_prior()
        >>> print(prior.a, prior.b)
        2.0 16.0
    """
    with shipped("breach_response.csv") as path:
        share = dict(read_table(path).rows)["stopped_dealing_after_notice"]
    left = float(np.round(float(share) * PEOPLE))
    return Beta(left, PEOPLE - left)
