"""Curves of runs on axes of matplotlib, for notebooks and scripts: `Run.plot` and `Comparison.plot`."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from fedtide.base.allowed import did_you_mean
from fedtide.base.errors import SettingsError
from fedtide.base.wording import count
from fedtide.comparison.comparison import Comparison
from fedtide.report.curves import curves_figure
from fedtide.report.figures import AXES, Drawing, Print, drawings, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (4.0, 3.0)  # inches of a setting


def plot(
    subject: Comparison, value: str = "", x: str = "", ax: Axes | Sequence[Axes] | None = None
) -> list[Axes]:
    """Draw a curve of runs, by default their metric; return the axes, one for each setting.

    For users, `Run.plot` and `Comparison.plot` describe the arguments. SettingsError: matplotlib is missing,
    the runs have no such value or axis, or there are fewer or more axes than settings.
    """
    require_matplotlib()
    from matplotlib import pyplot, rc_context

    from fedtide.report.drawing import draw, in_lines
    from fedtide.report.printing import STYLE, handles_of

    if x and x not in AXES:
        raise SettingsError(f"x is {x!r}; it must be one of {', '.join(AXES)}{did_you_mean(x, AXES)}")
    known = _drawings(subject, x)
    wanted = value.replace("-", "_") or subject.metric.key
    if wanted not in known:
        raise SettingsError(
            f"value is {value or wanted!r}, but evaluations have {', '.join(known) or 'nothing'}"
        )
    drawing = known[wanted]
    several = len(drawing.views)
    with rc_context(STYLE if ax is None else {}):
        if ax is None:
            size = {"figsize": (SIZE[0] * several, SIZE[1]), "layout": "constrained"}
            axes = [*pyplot.subplots(1, several, sharey=True, squeeze=False, **size)[1].flat]
        else:
            axes = [*ax] if isinstance(ax, Iterable) else [ax]
        if wrong := [type(own).__name__ for own in axes if not isinstance(own, pyplot.Axes)]:
            raise SettingsError(f"ax is a {wrong[0]}; give axes, as of pyplot.subplots")
        if len(axes) != several:
            raise SettingsError(f"ax has {len(axes)} axes for {count(several, 'setting')}")
        for own, (title, view) in zip(axes, drawing.views.items(), strict=True):
            draw(drawing.figure, view, {drawing.panels[0]: own})
            own.set_title(in_lines(title.replace(" · ", "\n")))
        if handles := handles_of(drawing, SIZE[0]):
            axes[0].legend(handles=handles)
    return axes


def picture(subject: Comparison) -> str:
    """Return the curves of the metric as an image in HTML; nothing without matplotlib or evaluations."""
    try:
        drawing = _drawings(subject)[subject.metric.key]
        from matplotlib.style import context

        from fedtide.report.printing import STYLE, UNDATED, compose
    except (ImportError, LookupError):
        return ""
    file = BytesIO()
    with context([STYLE]):
        made = compose(drawing, Print(SIZE[0] * min(2, len(drawing.views))))
        made.savefig(file, format="svg", metadata=UNDATED["svg"])
    return f'<img src="data:image/svg+xml;base64,{b64encode(file.getvalue()).decode()}" alt="curves">'


def _drawings(subject: Comparison, x: str = "") -> dict[str, Drawing]:
    """Return what can be drawn, by the keys of evaluations."""
    runs = {label: [run for _, run in group] for label, group in subject.groups.items()}
    papers = {label: group[0].cell.paper for label, group in subject.groups.items()}
    figure = curves_figure(runs, subject.panels, papers, subject.metrics)
    found: dict[str, Drawing] = {}
    for drawing in drawings([figure], x or subject.main_axis) if figure else ():
        found.setdefault(drawing.value, drawing)  # the first has all settings
    return found
