"""Every parser of a command line, fed as `fuzzing` says."""

import contextlib
import dataclasses
import io
import string
from pathlib import Path

import pytest
from absl import flags as absl_flags
from fuzzing import SHARES, bounded, feed, legal_config, one_line
from hypothesis import strategies as st

from experiments import reproduce
from experiments.config import flag, run_flags, schedule_flags, sweep_flags
from experiments.config.run_flags import RUN
from experiments.config.settings import DECIDING
from experiments.paper import reproduction
from experiments.sweeps import results

WORDS = """0 -1 1 2 0.5 1e400 1e-320 nan inf -inf 0x10 1_000 true false None , = - -- / ../../x % '
    cc_fedams cc_fedavg cc_fedsgd digits fashion_mnist stackoverflow synthetic mlp cnn natural iid
    dirichlet steps epochs none 4294967295 4294967296 2147483647 2147483648 0.1,1 1,1 auto a:1
    fig1_alpha3 fig3_beta fig9 coarse fine"""
VALUES = st.one_of(
    st.sampled_from(WORDS.split()),
    st.sampled_from(["", " ", "1 2", "a\nb", "\x00", "\ud800", "\x1b[2J", "\uff19", "9" * 5000]),
    st.text(max_size=6),
)


def plausible(name, known=RUN):
    """A flag as it may well be meant."""
    domain = known[name].domain
    if domain.define is absl_flags.DEFINE_boolean:
        return st.sampled_from([f"--{name}", f"--no{name}"])
    own = {absl_flags.DEFINE_integer: "0 1 2 3 5", absl_flags.DEFINE_float: "0 0.1 0.5 1 2 1e-3"}
    values = own.get(domain.define, "a b/c").split()
    if domain.define is absl_flags.DEFINE_string and domain is not flag.PATH:
        values = domain.expected.split(", ")
    return st.sampled_from(values).map(lambda value: f"--{name}={value}")


def word(names):
    flag = st.sampled_from(sorted(names)) | st.text(string.ascii_letters + "_-", max_size=8)
    return st.one_of(
        st.builds("--{}={}".format, flag, VALUES),
        st.builds("{}{}".format, st.sampled_from(["--", "-", "--no", ""]), flag),
        VALUES,
    )


@st.composite
def words(draw, names, always):
    """A command line: first what it needs, then flags that may be meant, and sometimes others."""
    meant = st.sampled_from(sorted(RUN)).flatmap(plausible)
    made = draw(st.lists(meant, max_size=4)) + draw(st.lists(word(names), max_size=1))
    return (always if draw(st.integers(0, 5)) else []) + draw(st.permutations(made))


def varied(name):
    pools = {"server": ["cc_fedams", "cc_fedadam"], "seed": ["1", "2", "3"]}
    values = st.sampled_from(pools.get(name, ["0.1", "0.2", "0.3"]))
    listed = st.lists(values, min_size=1, max_size=3, unique=True) | st.lists(VALUES, max_size=2)
    return listed.map(lambda values: f"{name}={','.join(values)}")


SWEEP = ["--server_lr=1", "--out_dir=x"]
NAMES = st.sampled_from(DECIDING)
VARY = st.lists(NAMES, max_size=3, unique=True).flatmap(
    lambda names: st.tuples(*map(varied, names)).map(" ".join)
)


OF_SCHEDULE = schedule_flags.SCHEDULE
LAW = st.sampled_from(["constant(2)", "log_normal(0,1)", "pareto", "uniform( 1 ,2)"])
MODEL = st.sampled_from(["always", "diurnal", "cyclic(9,1e-3)", "csv(a b)", "label(5)"])
NONSENSE = st.text("(),.0123456789 ab=", max_size=12)
SECONDS = st.sampled_from(["step", "download_time", "upload_time", "task", "extra"])
SCHEDULE_WORDS = st.builds(
    lambda *parts: [word for part in parts for word in part],
    st.sampled_from([["--file=a.npz", "--dataset=digits", "--model=mlp"]] * 5 + [["--show=a.npz"]]),
    st.lists(st.builds("--{}={}".format, SECONDS, LAW), max_size=2),
    st.lists(MODEL.map("--availability={}".format), max_size=1),
    st.lists(st.builds("--{}={}".format, SECONDS | st.just("availability"), NONSENSE), max_size=1),
    st.lists(st.sampled_from(sorted(OF_SCHEDULE)), max_size=2).flatmap(
        lambda names: st.tuples(*(plausible(name, OF_SCHEDULE) for name in names))
    ),
    st.just([]) | words(RUN, []),
)


def check_sweep(sweep):
    assert sweep.trials and sweep.out_dir.strip()
    for name, trial in sweep.trials.items():
        legal_config(trial.config)
        assert results._path("x", name).parent == Path("x") / results.TRIALS


def check_reproduction(argv):
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said), bounded():
        patch.setattr(reproduction, "reproduce", lambda *_: 0)
        code = reproduce.main(["reproduce", *argv])
    assert code in (0, 2) and len(said.getvalue().splitlines()) == (1 if code else 0)


def check_schedule(asked):
    assert asked.file.suffix == ".npz"
    assert (asked.config is None) == (asked.options.show is not None)
    if asked.config is not None:
        legal_config(asked.config)
    for name, value in dataclasses.asdict(asked.options).items():
        assert value is None or OF_SCHEDULE[name].domain.holds(value)


FLAGS = [*RUN, "grid_rounds", "grid", "seeds", "help"]
# Examples, what they are drawn from, what parses them, and what judges a result.
PARSERS = {
    "config": (1400, words(RUN, ["--server_lr=1"]), run_flags.parse, legal_config),
    "sweep": (400, st.builds(lambda vary, argv: [f"--vary={vary}", *argv], VARY | VALUES,
              st.just(SWEEP) | words(RUN, SWEEP)), sweep_flags.parse_sweep, check_sweep),
    "schedule": (400, SCHEDULE_WORDS, schedule_flags.parse_schedule, check_schedule),
    "reproduction": (120, words(FLAGS, ["fig3_beta", "--grid=coarse"]), lambda argv: argv[1:],
                     check_reproduction),
}  # fmt: skip


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("share", SHARES)
def test_any_words_are_what_they_ask_for_or_refused(name, share):
    examples, cases, parse, judge = PARSERS[name]

    def check(argv):
        try:
            with bounded():
                found = parse(["x", *argv])
        except ValueError as error:
            one_line(error)
        else:
            judge(found)

    feed(check, examples, share, cases)
