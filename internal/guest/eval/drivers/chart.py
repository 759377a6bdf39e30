# What a matplotlib figure shows, as data: the charts of E2B's protocol. It reads what was drawn, so
# it knows a chart by its shapes; what it cannot tell is of type "unknown" and has no elements.
#
# E2B's own extractor, the package e2b-charts, wants newer versions of matplotlib and numpy than
# Debian has. A test compares the two where that package is installed.
import re

_UNIT = re.compile(r"\s\((.*?)\)|\[(.*?)\]")  # "speed (m/s)", "speed [m/s]"


def _chart_of_figure(figure):
    axes = figure.get_axes()
    if not any(ax.has_data() for ax in axes):
        return None
    if len(axes) == 1:
        return _chart_of_axes(axes[0])
    title = figure._suptitle.get_text() if figure._suptitle else ""
    return {"type": "superchart", "title": title, "elements": [_chart_of_axes(ax) for ax in axes]}


def _chart_of_axes(ax):
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch, Rectangle, Wedge

    shapes = [*ax.lines, *ax.patches, *ax.collections, *ax.images]
    data = [s for s in shapes if not (isinstance(s, Line2D) and _is_grid(s))]

    def only(these, *kinds):
        return all(isinstance(s, kinds) for s in these)

    if only(shapes, Line2D):
        return _points(ax, "line", _lines(ax))
    if only(shapes, PathPatch, Line2D):
        return _boxes(ax)
    if only(data, PathCollection):
        return _points(ax, "scatter", [{"label": c.get_label(), "points": _pairs(*zip(*c.get_offsets().tolist()))}
                                       for c in ax.collections if len(c.get_offsets())])
    if only(data, Wedge):
        return {"type": "pie", "title": ax.get_title() or None, "elements": [
            {"label": w.get_label(), "angle": abs(_rounded(w.theta2 - w.theta1)), "radius": w.r} for w in ax.patches]}
    if only(data, Rectangle):
        return _bars(ax)
    return {"type": "unknown", "title": ax.get_title() or None, "elements": []}


def _is_grid(line):
    """Whether a line is straight along an axis, as those that mark a value are."""
    xs, ys = line.get_xdata(), line.get_ydata()
    return len(xs) == len(ys) == 2 and (xs[0] == xs[1] or ys[0] == ys[1])


def _rounded(number):
    """Eight digits after the point: what is beyond is the error of a computation."""
    return round(float(number), 8)


def _pairs(xs=(), ys=()):
    return [[_point(x), _point(y)] for x, y in zip(xs, ys)]


def _point(value):
    if type(value).__name__ == "datetime64":
        return str(value.astype("datetime64[s]"))
    return _json_value(value)


def _flat(ax, kind, swapped=False):
    """What charts with two axes have in common; bars that lie have them swapped."""
    x, y = ax.get_xlabel() or None, ax.get_ylabel() or None
    if swapped:
        x, y = y, x

    def unit(label):
        found = _UNIT.search(label or "")
        return found and (found.group(1) or found.group(2))

    return {"type": kind, "title": ax.get_title() or None, "x_label": x, "y_label": y,
            "x_unit": unit(x), "y_unit": unit(y), "elements": []}


def _points(ax, kind, elements):
    chart = _flat(ax, kind)
    for name, axis, scale in (("x", ax.xaxis, ax.get_xscale()), ("y", ax.yaxis, ax.get_yscale())):
        labels = [label.get_text() for label in axis.get_ticklabels()]
        ticks = [_json_value(tick) for tick in axis.get_ticklocs()]
        converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
        if type(converter).__name__ == "_SwitchableDateConverter":
            from matplotlib.dates import num2date
            scale, ticks = "datetime", [num2date(tick).isoformat() for tick in ticks]
        elif scale == "linear" and all(t == i and str(i) != label for i, (t, label) in enumerate(zip(ticks, labels))):
            scale = "categorical"
        chart.update({name + "_ticks": ticks, name + "_tick_labels": labels, name + "_scale": scale})
    chart["elements"] = elements
    return chart


def _lines(ax):
    out = []
    for line in ax.get_lines():
        if not _is_grid(line):
            label = re.sub("^_child(?=[0-9])", "Line ", str(line.get_label()))
            out.append({"label": label, "points": _pairs(line.get_xdata(), line.get_ydata())})
    return out


def _bars(ax):
    lying = False
    elements = []
    for container in ax.containers:
        group = re.sub("^_container(?=[0-9])", "Group ", str(container.get_label()))
        lies = getattr(container, "orientation", None) == "horizontal"
        lying = lying or lies
        axis = ax.yaxis if lies else ax.xaxis
        for label, bar in zip(axis.get_ticklabels(), container):
            value = bar.get_width() if lies else bar.get_height()
            elements.append({"label": label.get_text(), "group": group, "value": _json_value(value)})
    return {**_flat(ax, "bar", lying), "elements": elements}


def _boxes(ax):
    """Boxes of boxplot(patch_artist=True). They lie where the line of a median stands upright."""
    spans = []  # of each box: its ends across, its ends along
    for box in ax.patches:
        points = box.get_path().vertices.tolist()
        spans.append([[_rounded(f(p[n] for p in points)) for f in (min, max)] for n in (0, 1)])
    lines = [[[_rounded(v) for v in data] for data in (line.get_xdata(), line.get_ydata())] for line in ax.lines]
    lying = any(len(xs) == 2 and xs[0] == xs[1] and sorted(ys) in [across for _, across in spans] for xs, ys in lines)
    if lying:
        spans = [(along, across) for across, along in spans]
    labels = [label.get_text() for label in (ax.yaxis if lying else ax.xaxis).get_ticklabels()]
    elements = []
    for label, (across, (low, high)) in zip(labels, spans):
        element = {"label": label, "min": low, "first_quartile": low, "median": None, "third_quartile": high,
                   "max": high, "outliers": []}
        for line in lines:
            xs, ys = reversed(line) if lying else line
            if xs and across[0] <= min(xs) and max(xs) <= across[1]:
                _of_box(element, ys, low, high)
        elements.append(element)
    return {**_flat(ax, "box_and_whisker", lying), "elements": elements}


def _of_box(element, ys, low, high):
    """Add what a line says of the box it belongs to: its median, a whisker, or values beyond them."""
    if len(ys) == 2 and ys[0] == ys[1]:
        if low <= ys[0] <= high:
            element["median"] = ys[0]
    elif len(ys) == 2 and max(ys) == low:
        element["min"] = min(ys)
    elif len(ys) == 2 and min(ys) == high:
        element["max"] = max(ys)
    elif len(ys) != 2:
        element["outliers"] += ys
