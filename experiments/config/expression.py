"""Values written as NAME(ARGUMENT,...): distributions, models of availability, data sets."""

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
    """The name in `text` and its arguments: floats, or a path and further words.

    Arguments are written in the form's order, the last of them perhaps as NAME=VALUE. None where it
    has none of the forms, an argument is no finite number, or there is no path.
    """
    name, inside = _parts(text)
    form = next((form for form in forms if _parts(form)[0] == name), None)
    if form is None:
        return None
    wanted = _parts(form)[1]
    names = wanted.split(",") if wanted else []
    of_path = names[:1] == ["PATH"]
    # A path on its own may have commas.
    words = inside.split(",", len(names) - 1 if of_path else -1) if inside else []
    words = _in_order(words, names)
    if words is None:
        return None
    if of_path:
        words = tuple(word.strip() for word in words)
        return (name, words) if all(words) else None
    try:
        numbers = tuple(map(number, words))
    except ValueError:
        return None
    return (name, numbers) if all(map(math.isfinite, numbers)) else None


def _in_order(words: list[str], form: list[str]) -> list[str] | None:
    """The arguments in the form's order, with its defaults where they are missing, "" without one.

    None for too many, for one that is given twice, and for one without a name where the form has
    another before it that is not given.
    """
    names = [known.partition("=")[0] for known in form]
    found = [known.partition("=")[2] for known in form]
    given: list[int] = []
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        is_path = names[:1] == ["PATH"] and place == 0
        if equals and not is_path and names.count(name.strip()) == 1:
            place, word = names.index(name.strip()), value
        elif given != [*range(place)]:  # it follows one with a name
            return None
        if place >= len(names) or place in given:
            return None
        given.append(place)
        found[place] = word
    return found


def domain(forms: tuple[str, ...], several: bool = False) -> Domain:
    """The domain of flags with such a value, or with `several`, joined by + or blanks."""
    expected = ", ".join(forms) + ("; several with + between two" if several else "")

    def read(text: str) -> tuple:
        words = split(text, "+ ") if several else [text]
        return tuple(expression(word, forms) for word in words)

    def holds(text: str) -> bool:
        found = read(text)
        return bool(found) and None not in found

    return Domain(flags.DEFINE_string, expected, holds, read)


def _comparison(text: str) -> tuple[str, str, float]:
    name, sign, bound = re.split("([<>]=)", text.strip(), maxsplit=1)
    return name.strip(), sign, number(bound.strip())


def _is_comparison(text: str) -> bool:
    try:
        name, _, bound = _comparison(text)
        return name.isidentifier() and math.isfinite(bound)
    except ValueError:
        return False


FUNCTION = Domain(
    flags.DEFINE_string,
    "MODULE:FUNCTION or FILE.py:FUNCTION",
    lambda text: re.fullmatch(r"[^:]+:[^\W\d]\w*", text) is not None,
)
COMPARISON = Domain(
    flags.DEFINE_string, "NAME>=NUMBER or NAME<=NUMBER", _is_comparison, _comparison
)


def split(text: str, separators: str) -> list[str]:
    """The parts of a text between separators that are in no brackets, without empty ones."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character in separators and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part]


def argument_names(name: str, forms: tuple[str, ...]) -> list[str]:
    """The names of the arguments in the form of `name`."""
    inside = next(_parts(form)[1] for form in forms if _parts(form)[0] == name)
    return [word.partition("=")[0] for word in inside.split(",") if word]


def _parts(text: str) -> tuple[str, str]:
    found = re.fullmatch(r"(\w+)(?:\((.*)\))?", text.strip())
    return (found[1], found[2] or "") if found else ("", "")
