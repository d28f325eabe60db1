"""Values written as NAME(ARGUMENT,...): distributions of seconds, models of availability."""

import math
import re

from absl import flags

from .flag import Domain
from .parsers import number

# The possible forms; a number after = is the default of a missing argument.
DISTRIBUTIONS = (
    "constant(value)",
    "uniform(low,high)",
    "exponential(mean)",
    "log_normal(mu=1,sigma=0.6,scale=0.005)",
    "half_normal(sigma=1,least=0)",
    "pareto(shape=1,least=1,most=60)",
    "three_classes(concentration=1,low=1,high=2,low=3,high=5,low=5,high=8)",
)
AVAILABILITIES = (
    "always",
    "bernoulli(p,period)",
    "cyclic(period,on)",
    "diurnal(start=22,hours=8)",
    "markov(mean_on,mean_off)",
    "label(period)",
    "label_diurnal(start=22,hours=8)",
    "fedscale(PATH)",
    "flash(PATH)",
    "csv(PATH)",
    "npz(PATH)",
)


def expression(text: str, forms: tuple[str, ...]) -> tuple[str, tuple] | None:
    """The name in `text` and its arguments, floats or one path.

    None where it has none of the forms, or an argument is no finite number.
    """
    name, inside = _parts(text)
    form = next((form for form in forms if _parts(form)[0] == name), None)
    if form is None:
        return None
    wanted = _parts(form)[1]
    if wanted == "PATH":
        return (name, (inside.strip(),)) if inside.strip() else None
    words, names = (part.split(",") if part else [] for part in (inside, wanted))
    # Missing arguments take the form's default; one without a default is no number.
    words += [known.partition("=")[2] for known in names[len(words) :]]
    try:
        numbers = tuple(map(number, words))
    except ValueError:
        return None
    fits = len(words) == len(names) and all(map(math.isfinite, numbers))
    return (name, numbers) if fits else None


def domain(forms: tuple[str, ...]) -> Domain:
    """The domain of flags with such values."""
    return Domain(
        flags.DEFINE_string, ", ".join(forms), lambda text: expression(text, forms) is not None
    )


def _parts(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"(\w+)(?:\((.*)\))?", text.strip())
    return (found[1], found[2] or "") if found else ("", "")
