"""config/expression.py: values that are written as NAME(ARGUMENT,...)."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfl_jax.clock import speed
from experiments.config.expression import AVAILABILITIES, DISTRIBUTIONS, expression


@pytest.mark.parametrize("form", DISTRIBUTIONS)
def test_distributions_have_the_arguments_and_defaults_of_the_library(form):
    name, _, inside = form.rstrip(")").partition("(")
    known = inspect.signature(getattr(speed, name)).parameters
    written = [word.partition("=")[::2] for word in inside.split(",")]
    if name == "three_classes":
        edges = [float(value) for _, value in written[1:]]
        assert tuple(zip(edges[::2], edges[1::2], strict=True)) == known["ranges"].default
        written = written[:1]
        known = {"concentration": known["concentration"]}
    assert list(known) == [argument for argument, _ in written]
    for argument, value in written:
        default = known[argument].default
        assert default == (float(value) if value else inspect.Parameter.empty)


@given(st.lists(st.just(0.0) | st.floats(2**-126, 1e300), min_size=0, max_size=4))
def test_numbers_are_read_as_they_are_written(numbers):
    """log_normal has three arguments, uniform two without a default."""
    text = f"({','.join(map(repr, numbers))})"
    defaults = (1.0, 0.6, 0.005)
    expected = ("log_normal", (*numbers, *defaults[len(numbers) :])) if len(numbers) < 4 else None
    assert expression(f"log_normal{text}", DISTRIBUTIONS) == expected
    expected = ("uniform", tuple(numbers)) if len(numbers) == 2 else None
    assert expression(f"uniform{text}", DISTRIBUTIONS) == expected


@pytest.mark.parametrize(("text", "numbers"), [
    ("log_normal(scale=60)", (1, 0.6, 60)), ("log_normal(0,scale=60)", (0, 0.6, 60)),
    ("log_normal(scale=60,mu=0)", (0, 0.6, 60)), ("uniform(low=1, high=2)", (1, 2)),
    ("uniform(low=1)", None), ("uniform(high=2,1)", None), ("uniform(low=1,2)", (1, 2)),
    ("uniform(1,low=2)", None), ("uniform(1,top=2)", None),
    ("three_classes(concentration=2,low=1)", None),
])  # fmt: skip
def test_numbers_by_their_names(text, numbers):
    """`low` is the name of three arguments of three_classes."""
    found = expression(text, DISTRIBUTIONS)
    assert found == (numbers and (text.partition("(")[0], numbers))


_FORMS = ("csv(PATH)", "parquet(PATH,x=x,client=c)", "plain")


@pytest.mark.parametrize(("text", "found"), [
    ("csv(a,b c)", ("csv", ("a,b c",))),
    ("parquet(a)", ("parquet", ("a", "x", "c"))),
    (" parquet( a/b , image)", ("parquet", ("a/b", "image", "c"))),
    ("parquet(a,b,c)", ("parquet", ("a", "b", "c"))),
    ("parquet(a,client=w)", ("parquet", ("a", "x", "w"))),
    ("parquet(a, client = w, x=i)", ("parquet", ("a", "i", "w"))),
    ("parquet(a,i,client=b=c)", ("parquet", ("a", "i", "b=c"))),
    ("parquet(x=a,y=b)", ("parquet", ("x=a", "y=b", "c"))),
    ("csv(PATH=a,b=c)", ("csv", ("PATH=a,b=c",))),
    ("parquet(a,x=)", None), ("parquet(a,x=i,x=j)", None), ("parquet(a,i,x=j)", None),
    ("parquet(a,client=w,i)", None),
    ("plain", ("plain", ())),
    ("parquet", None), ("parquet()", None), ("parquet(,b)", None), ("parquet(a,)", None),
    ("plain(a)", None), ("csv", None),
])  # fmt: skip
def test_paths_and_the_words_behind_them(text, found):
    """A path alone may have commas; words that are missing take their defaults."""
    assert expression(text, _FORMS) == found


_WRONG = {
    DISTRIBUTIONS: ["", "norm(1)", "constant", "constant()", "constant(a)", "constant(1,2)",
                    "constant(nan)", "constant(1", "constant(1)x", "constant(1,)", "uniform(1)",
                    "uniform(,1)", "csv(a)", "constant(1e-400)", "constant(1_0)"],
    AVAILABILITIES: ["always(1)", "bernoulli", "bernoulli(0.5)", "csv", "csv()", "csv( )", "label",
                     "Always"],
}  # fmt: skip


@pytest.mark.parametrize(("forms", "text"), [(f, text) for f in _WRONG for text in _WRONG[f]])
def test_what_has_none_of_the_forms(forms, text):
    assert expression(text, forms) is None
