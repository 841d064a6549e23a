"""Figures without a display, where matplotlib is installed."""

from __future__ import annotations

from typing import Any

from sgl_dspark.errors import DsparkError


def new_figure(width: float, height: float) -> Any:
    """Return an empty matplotlib figure, sizes in inches.

    Raises
    ------
    DsparkError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DsparkError("drawing needs matplotlib; install `sgl-dspark[plot]`, or leave the plot out") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
