# The rich forms of values, by the names of E2B's protocol. Both Python drivers use them.
import base64
import datetime
import math
import sys

_MIME = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
    "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/json": "json",
    "application/javascript": "javascript", "e2b/data": "data", "e2b/chart": "chart",
}


def _binary(value):
    return base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray)) else value


def _bundle(mimes, into):
    """Put a MIME bundle into a result: by E2B's names, and under "extra" what has none."""
    for mime, data in mimes.items():
        key = _MIME.get(mime)
        if key:
            into[key] = _binary(data)
        else:
            into.setdefault("extra", {})[str(mime)] = _binary(data)


def _unquoted(text):
    """The text of a string's repr without its quotes, as E2B's clients expect it."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def _json_value(value):
    """A value as JSON has it: clients of other languages read no NaN."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if hasattr(value, "item") and not isinstance(value, datetime.date):
        value = value.item()  # numpy's scalars
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (datetime.date, datetime.time)):
        return None if value != value else value.isoformat()  # NaT is unequal to itself
    if isinstance(value, (list, tuple)):
        return [_json_value(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _json_value(v) for k, v in value.items()}
    return value if isinstance(value, (bool, int, str)) else str(value)


def _data(value):
    """The columns of a pandas data frame, else None. There is none before pandas was imported."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, getattr(pandas, "DataFrame", ())):
        return None
    return {str(k): _json_value(v) for k, v in value.to_dict(orient="list").items()}


def _is_figure(value):
    figure = sys.modules.get("matplotlib.figure")
    return figure is not None and isinstance(value, getattr(figure, "Figure", ()))


def _chart(value):
    """What a matplotlib figure shows as data, else None. A figure that cannot be read is no error: it is shown."""
    if not _is_figure(value):
        return None
    try:
        return _json_value(_chart_of_figure(value)) or None
    except Exception:
        return None


_EXTRA_FORMS = (("e2b/data", _data), ("e2b/chart", _chart))
