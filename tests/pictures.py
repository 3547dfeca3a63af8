"""Pictures that tests draw."""

import matplotlib

matplotlib.use("Agg")

from perfjax import figures

__all__ = ["drawn"]


def drawn(data, folder, panels):
    """The figure can be drawn, has so many heat maps or line plots, and says something."""
    picture = figures.draw(data)
    assert sum(bool(ax.get_xlabel()) for ax in picture.axes) == panels
    picture.savefig(folder / "picture.png", dpi=50)
    assert all(figures.summary(data))
