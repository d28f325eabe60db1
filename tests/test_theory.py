"""The theorem in numbers: formulas against plain loops, and real runs of CC-FedAdagrad under it."""

import math
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.tree_util import Partial
from problems import make_schedule

import ccfl_jax as ccfl
from ccfl_jax import theory
from ccfl_jax.theory import Problem, Setting, Work

PROBLEM = Problem(L=2.0, G=3.0, sigma_l=0.7, sigma_g=0.4, d=10, gap=5.0)
SETTING = Setting(
    server_lr=0.5, local_lr=1e-3, b1=0.9, eps=0.1, initial_accumulator=0.1**2, buffer_size=5,
    num_clients=20, rounds=500,
)  # fmt: skip
WORK = Work(phi_1=2.0, phi_2=14 / 3, phi_3=11 / 18, max_steps=3, max_delay=4, mean_delay=2.0)


# What the formulas say -----------------------------------------------------------------------


def test_phi_and_delays_against_plain_loops():
    rng = np.random.default_rng(0)
    s = make_schedule(
        client=[[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]],
        staleness=[[0, 0, 0], [1, 0, 1], [2, 1, 0], [3, 0, 0]],
        work=rng.integers(1, 6, (4, 3)),
        present=[[True, True, True], [True, False, True], [True] * 3, [False, True, True]],
    )
    sums, delays, most = [[], [], []], [], 0
    for t in range(4):
        steps = [int(s.work[t][k]) for k in range(3) if s.present[t][k]]
        for i, power in enumerate((1, 2, -1)):
            sums[i].append(sum(float(k) ** power for k in steps) / len(steps))
        delays += [int(s.staleness[t][k]) for k in range(3) if s.present[t][k]]
        most = max(most, *steps)
    work = theory.read_schedule(s, 5)
    assert work[:3] == pytest.approx([sum(x) / 4 for x in sums])
    assert (work.max_steps, work.max_delay) == (most, 2)  # the delay of 3 is of an absent slot
    assert work.mean_delay == pytest.approx(sum(delays) / len(delays))


def test_epochs_become_steps_by_the_steps_given():
    s = make_schedule(client=[[0, 1]], work=[[2, 3]])
    work = theory.read_schedule(s, 2, steps=np.array([[2 * 4, 3 * 1]]))
    assert work == (5.5, 36.5, (1 / 8 + 1 / 3) / 2, 8, 0, 0.0)


def test_terms_as_printed():
    """Section 4 of the paper, number by number: C = 9, eta eta_l = 5e-4."""
    parts = theory.terms(PROBLEM, SETTING, WORK, form="paper")
    assert parts.form == "paper" and parts.D == 0.2 and parts.sampling == 0
    assert parts.descent == pytest.approx(8 * 0.1 / (5e-4 * 500))
    assert parts.Phi == pytest.approx(4 * 10 * 9 * 9 + 2 * 5e-4 * 9 * 81 * 4 * 10 / 0.1)
    assert parts.Phi_g == pytest.approx(240 * 1e-6 * 4 * 14 / 3)
    first = 40 * 1e-6 * 4 * 2
    second = (4 * 5e-4 * 2 * 81 + 6 * 2 * 5e-4 + 2 * 1e-3 * 3) / (5 * 0.1) * 11 / 18
    third = 2 * 0.5**2 * 1e-6 * 4 * 16 / (0.1**2 * 5) * 11 / 18
    assert parts.Phi_l == pytest.approx(first + second + third)


def test_terms_repaired():
    """The steps of the proof with v_hat_0 = eps^2, each divided by eta eta_l T / (4 D)."""
    L, G, _, sigma_g, d, _ = PROBLEM
    eta, eta_l, _, eps, _, m, n, T = SETTING
    C, tau, K = 9.0, 4, 3
    D = eps + math.sqrt(eps**2 + T * eta_l**2 * G**2)
    left = eta * eta_l / (4 * D)  # what the absorbed gradients leave of eta eta_l / (2 D)
    a_3 = (eta**2 * eta_l**2 * G**2 * L * C**2 / (2 * eps) + eta * eta_l * G**2 * C) * d / (2 * eps)
    momentum = a_3 + L * eta**2 * eta_l**2 * G**2 * C**2 * d / (4 * eps**2)
    upload = (2 * eta**2 * L * C**2 + 3 * L * eta**2 + eta * G) / (4 * eps**2)
    upload = eta_l**2 * (upload + eta**3 * eta_l * L**2 * tau**2 / (4 * eps**3))
    local, stale = eta_l * G * K, tau * eta * eta_l * G / (2 * eps)
    spread = min(G**2, 3 * sigma_g**2 + 3 * L**2 * (local**2 / 3 + stale**2))
    parts = theory.terms(PROBLEM, SETTING, WORK)
    assert parts.form == "consistent" and math.isclose(parts.D, D)
    assert parts.descent == pytest.approx(1 / (left * T))
    assert parts.Phi == pytest.approx(momentum / left)
    assert parts.Phi_g == pytest.approx(30 * eta * eta_l**3 * L**2 / eps * K**2 / left)
    noise = 5 * eta * eta_l**3 * L**2 / eps * WORK.phi_1 + upload * WORK.phi_3 / m
    assert parts.Phi_l == pytest.approx(noise / left)
    assert parts.sampling == pytest.approx(upload / left * (n - m) / (m * (n - 1)) * spread)
    assert spread < G**2  # so that the other branch is what is compared


def test_the_spread_of_clients_is_at_most_G_squared():
    """With L next to nothing the factor of the spread is 2 eta_l G / eps, D / (2 eps) in front."""
    parts = theory.terms(PROBLEM._replace(sigma_g=2.9, L=1e-9), SETTING, WORK)
    expected = parts.D / 0.2 * 2e-3 * 3 / 0.1 * 15 / (5 * 19) * 3.0**2
    assert parts.sampling == pytest.approx(expected)


def test_printed_constants_leave_room_for_dependent_noise():
    """The proof's E||noise + signal||^2 lacks a factor 2; the printed constants have it to spare.

    Per coordinate, with v >= eps^2, v' = v + u^2 (eps = 1): A_5 needs
    |u| / ((sqrt v + sqrt v') (sqrt v + 1) (sqrt v' + 1)), print has 1/4.
    A_1 and A_4 need L eta^2 (1/8 + 1/4), print 3/4; C^2 needs 1/8, print 1/2.
    """
    v, u = np.meshgrid(np.linspace(1, 50, 200), np.geomspace(1e-3, 1e3, 2000))
    new = np.sqrt(v + u**2)
    needed = (u / ((np.sqrt(v) + new) * (np.sqrt(v) + 1) * (new + 1))).max()
    assert needed == pytest.approx(1 / (2 * 3**1.5), rel=1e-3)  # at v = 1, v' = 4
    assert 2 * needed <= 1 / 4 and 2 * (1 / 8 + 1 / 4) <= 3 / 4 and 2 / 8 <= 1 / 2


def sides(found):
    return {c.name.split(" <=")[0].split(" =")[0]: (c.left, c.right) for c in found[2:]}


def test_conditions_as_printed():
    first, second, *_ = found = theory.conditions(PROBLEM, SETTING, WORK, form="paper")
    assert len(found) == 4 and all(c.form == "paper" for c in found)
    assert (first.left, first.right) == (1e-3, pytest.approx(1 / (8 * 3 * 2)))
    assert second.right == pytest.approx((120 * 4 * 0.1 * 4 * 9) ** -0.5)
    h = (2 * 0.25 * 4 * 16) * 1e-6 + (4 * 0.5 * 2 * 81 + 6 * 0.5 * 2 * 0.1 + 2 * 3 * 0.1) * 1e-3
    assert sides(found) == {
        "eta_l": (1e-3, pytest.approx(0.1 / (500**0.5 * 3))),
        "H_1 eta_l^2 + H_2 eta_l": (pytest.approx(h), pytest.approx(0.01)),
    }
    assert [c.holds for c in found] == [True, True, True, False]
    assert str(first) == "eta_l <= 1/(8 K L): 0.001 and 0.02083, holds (paper)"
    still = WORK._replace(max_delay=0, mean_delay=0.0)
    assert theory.conditions(PROBLEM, SETTING, still, form="paper")[1].right == math.inf


def test_conditions_repaired():
    found = theory.conditions(PROBLEM, SETTING, WORK)
    D = 0.1 + (0.01 + 500 * 1e-6 * 9) ** 0.5
    assert found[1].right == pytest.approx((0.1 / (120 * 4 * 9 * 5 * D)) ** 0.5)
    h = 32e-6 + (4 * 0.5 * 2 * 81 * 0.1 + 6 * 0.5 * 2 * 0.1 + 2 * 3 * 0.1) * 1e-3
    assert sides(found)["H_1 eta_l^2 + H_2 eta_l"] == (pytest.approx(h), pytest.approx(0.01))
    assert found[-1].name == "initial_accumulator = eps^2" and found[-1].holds
    usual = theory.conditions(PROBLEM, SETTING._replace(initial_accumulator=0.0), WORK)
    assert [c.holds for c in usual] == [True, True, True, False, False]
    assert all(c.form == "consistent" for c in found)


def test_corollary():
    one_k = Work(2.0, 4.0, 0.5, 2, 1, 0.5)
    long = SETTING._replace(rounds=160)  # m K^5 = 160, (T / (m K))^(1/4) = 2
    printed = theory.corollary(PROBLEM, long, one_k, form="paper")
    assert [(c.left, c.right) for c in printed] == [(2, pytest.approx(2)), (160, 160), (1, 2)]
    assert all(c.holds and c.form == "paper" for c in printed)
    uneven, short, late = (
        theory.corollary(PROBLEM, *pair, form="paper")
        for pair in (
            (long, one_k._replace(phi_1=1.9)),
            (long._replace(rounds=159), one_k),
            (long, one_k._replace(max_delay=3)),
        )
    )
    assert [[c.holds for c in found].index(False) for found in (uneven, short, late)] == [0, 1, 2]
    repaired = theory.corollary(PROBLEM, long, one_k)
    assert [c.left for c in repaired[3:]] == pytest.approx([5 * 2 * 4 / 0.01, 15 * 0.4])
    assert [c.holds for c in repaired] == [True] * 3 + [False] * 2
    for changes in ({"buffer_size": 20}, {}):
        problem = PROBLEM._replace(sigma_g=PROBLEM.sigma_g if changes else 0.0)
        assert theory.corollary(problem, long._replace(**changes), one_k)[-1].holds


def sizes(least, most):
    return st.floats(least, most)


problems = st.builds(
    Problem, sizes(0.1, 10), sizes(0.1, 10), sizes(0, 5), sizes(0, 5), st.integers(1, 100),
    sizes(0, 10),
)  # fmt: skip


@st.composite
def settings_of_runs(draw):
    n, eps = draw(st.integers(1, 40)), draw(sizes(1e-3, 3))
    return Setting(
        draw(sizes(1e-3, 10)), draw(sizes(1e-5, 0.1)), draw(sizes(0, 0.95)), eps, eps**2,
        draw(st.integers(1, n)), n, draw(st.integers(1, 10_000)),
    )  # fmt: skip


@st.composite
def works(draw):
    steps = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    delay = draw(st.integers(0, 9))
    phi = [float(np.mean(np.array(steps, float) ** power)) for power in (1, 2, -1)]
    return Work(*phi, max(steps), delay, delay / 2)


@given(problems, settings_of_runs(), works())
def test_the_consistent_bound_is_never_below_the_printed_one(problem, setting, work):
    printed = theory.bound(problem, setting, work, form="paper")
    repaired = theory.bound(problem, setting, work)
    assert (printed.form, repaired.form) == ("paper", "consistent")
    assert repaired.value >= printed.value * (1 - 1e-12)
    for found in (printed, repaired):
        assert found.value == pytest.approx(sum(found[2:]))


@given(problems, settings_of_runs(), st.integers(1, 9))
def test_with_all_clients_and_no_delay_the_forms_differ_by_one_factor(problem, setting, steps):
    """Nothing is sampled, K_max^2 = phi_2: what is left of the repairs is 2 eps -> D."""
    work = Work(float(steps), float(steps**2), 1 / steps, steps, 0, 0.0)
    setting = setting._replace(num_clients=setting.buffer_size)
    forms = [theory.bound(problem, setting, work, form) for form in ("paper", "consistent")]
    D = theory.terms(problem, setting, work).D
    factor = D / (2 * setting.eps)
    assert forms[1][1:] == pytest.approx([factor * x for x in forms[0][1:]])
    printed, repaired = (theory.conditions(problem, setting, work, f.form) for f in forms)
    assert printed[0][:4] == repaired[0][:4] and printed[2][:4] == repaired[2][:4]
    assert repaired[1].right == pytest.approx(
        1 / (problem.L * steps * math.sqrt(240 * factor)), rel=1e-9
    )
    if setting.b1 == 0:
        assert printed[3][:4] == repaired[3][:4]
    if printed[2].holds:
        assert 1 <= factor <= (1 + math.sqrt(2)) / 2 + 1e-12


@given(problems, settings_of_runs(), works(), st.sampled_from(["paper", "consistent"]))
def test_bounds_grow_with_what_makes_a_problem_harder(problem, setting, work, form):
    value = theory.bound(problem, setting, work, form).value
    slack = 1 + 1e-12
    for name in ("L", "G", "sigma_l", "sigma_g", "d", "gap"):
        harder = problem._replace(**{name: getattr(problem, name) * 2})
        assert theory.bound(harder, setting, work, form).value * slack >= value, name
    later = work._replace(max_delay=work.max_delay + 1)
    assert theory.bound(problem, setting, later, form).value * slack >= value
    if setting.buffer_size < setting.num_clients:
        more = setting._replace(buffer_size=setting.buffer_size + 1)
        assert theory.bound(problem, more, work, form).value <= value * slack


@given(problems, settings_of_runs(), works(), st.sampled_from(["paper", "consistent"]))
def test_conditions_that_hold_hold_for_smaller_steps(problem, setting, work, form):
    found = theory.conditions(problem, setting, work, form)
    for name in ("local_lr", "server_lr"):
        smaller = setting._replace(**{name: getattr(setting, name) / 2})
        after = theory.conditions(problem, smaller, work, form)
        assert all(b.holds or not a.holds for a, b in zip(found, after, strict=True))
    for condition in found[:4]:
        assert condition.holds == (condition.left <= condition.right)


@pytest.mark.parametrize(
    ("where", "changes", "message"),
    [
        ("problem", {"L": -1.0}, "L: expected a number > 0, found -1.0"),
        ("problem", {"G": 0.0}, "G: expected a number > 0, found 0.0"),
        ("problem", {"sigma_g": math.nan}, "sigma_g: expected a number >= 0, found nan"),
        ("problem", {"d": 1.5}, "d: expected an integer above 0, found 1.5"),
        ("problem", {"gap": math.inf}, "gap: expected a number >= 0, found inf"),
        ("setting", {"b1": 1.0}, "b1: expected 0 <= b1 < 1, found 1.0"),
        ("setting", {"eps": 0.0}, "eps: expected a number > 0, found 0.0"),
        ("setting", {"local_lr": "x"}, "local_lr: expected a number > 0, found 'x'"),
        ("setting", {"rounds": True}, "rounds: expected an integer above 0, found True"),
        ("setting", {"buffer_size": 21}, "buffer_size: expected at most .* clients, 20, found 21"),
        ("work", {"max_delay": -1}, "max_delay: expected an integer >= 0, found -1"),
        ("work", {"phi_3": 0.0}, "phi_3: expected a number > 0, found 0.0"),
    ],
)
@pytest.mark.parametrize("function", [theory.conditions, theory.bound, theory.corollary])
def test_numbers_out_of_range_are_refused(function, where, changes, message):
    arguments = {"problem": PROBLEM, "setting": SETTING, "work": WORK}
    arguments[where] = arguments[where]._replace(**changes)
    with pytest.raises(ValueError, match=f"^{message}$"):
        function(**arguments)


def test_an_unknown_form_and_a_schedule_without_work_are_refused():
    for function in (theory.conditions, theory.terms, theory.bound, theory.corollary):
        with pytest.raises(ValueError, match="^form: expected paper, consistent$, found 'other'"):
            function(PROBLEM, SETTING, WORK, form="other")
    with pytest.raises(ValueError, match="^schedule: found no slot with work, .* at least one$"):
        theory.read_schedule(make_schedule([[0]], work=0), 1)


# What runs do --------------------------------------------------------------------------------

CLIENTS, DIMENSION, BATCH, ROUNDS = 20, 4, 2, 512
H = np.linspace(0.25, 1.0, DIMENSION)  # curvatures, so L = 1


def rho(loss, u):
    """u^2 / 2, or sqrt(1 + u^2) - 1, whose slope is below 1; no slope changes faster than u."""
    return u * u / 2 if loss == "quadratic" else (1 + u * u) ** 0.5 - 1


@cache
def round_of(loss):
    """The round as a function of its rates: other rates, data and starts are no other program."""

    def losses(params, batch, mask):
        each = jnp.asarray(H, jnp.float32)[None] * rho(loss, params["x"][None] - batch["y"])
        return jnp.where(mask, each.sum(axis=1), 0).sum(), mask.sum()

    def mean(params, batch, mask, key):
        total, count = losses(params, batch, mask)
        return total / count

    task = ccfl.Task(None, mean, lambda *batch: {"loss": losses(*batch)})

    def round_at(rates, *arguments):
        return ccfl.build_round(
            task, server_at(rates), rates[1], batch_size=BATCH, work_unit="steps", lanes=CLIENTS
        )(*arguments)

    return round_at


def server_at(rates):
    eta, _, b1, eps = rates
    return ccfl.cc_fedadagrad(eta, b1, eps, initial_accumulator=eps**2)


class Example(NamedTuple):
    """Clients with known constants; these hold while no |coordinate| of a model is over radius.

    A local step ends between its start and its samples, so that looking at x_t is enough.
    """

    loss: str
    first: np.ndarray  # x_0
    data: ccfl.FederatedData
    problem: Problem
    gradient: object  # x [..., d] -> grad f(x), float64
    value: object  # x [..., d] -> f(x), float64
    radius: float


@cache
def example(loss, spread=1.0, noise=1.0, distance=4.0):
    """Losses sum_j H_j rho(x_j - y_j) of points y; x_0 is `distance` off the minimum everywhere.

    Client i has the points c_i + e_r with the same eight e_r, in pairs e, -e. The variance of a
    sample's gradient in a client is at most sum_j H_j^2 var_r(y), divided by the batch size when
    that many are drawn with replacement, and sigma_g^2 is at most sum_j H_j^2 var_i(c_i) (both are
    exact for u^2 / 2); neither is over G^2.
    """
    rng = np.random.default_rng(0)
    centres = spread * rng.normal(size=(CLIENTS, 1, DIMENSION))
    errors = noise * rng.normal(size=(1, 4, DIMENSION))
    points = (centres + np.concatenate([errors, -errors], axis=1)).astype(np.float32)
    y, flat = points.astype(np.float64), points.reshape(-1, DIMENSION)

    def gradient(x):
        u = np.asarray(x, np.float64)[..., None, :] - flat
        return (H * (u if loss == "quadratic" else u / np.sqrt(1 + u * u))).mean(axis=-2)

    def value(x):
        u = np.asarray(x, np.float64)[..., None, :] - flat
        return (H * rho(loss, u)).sum(axis=-1).mean(axis=-1)

    low, high = y.min(axis=(0, 1)), y.max(axis=(0, 1))
    for _ in range(60):  # every coordinate of the gradient grows, with its own coordinate alone
        middle = (low + high) / 2
        left = gradient(middle) < 0
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    first = (low + distance).astype(np.float32)
    radius, G = math.inf, np.linalg.norm(H)
    if loss == "quadratic":
        radius = max(abs(first).max(), abs(y).max())
        G = np.linalg.norm(H * (abs(y) + radius), axis=-1).max()
    within = min(G**2, (H**2 * y.var(axis=1)).sum(axis=-1).max()) / BATCH
    between = min(G**2, (H**2 * y.mean(axis=1).var(axis=0)).sum())
    gap = max(float(value(first) - value(low)), 0.0)
    data = ccfl.FederatedData.from_indices({"y": flat}, list(np.arange(len(flat)).reshape(-1, 8)))
    constants = Problem(1.0, float(G), within**0.5, between**0.5, DIMENSION, gap)
    return Example(loss, first, data, constants, gradient, value, radius)


def allowed(problem, work, b1, buffer_size, local_lr=None):
    """Nearly the largest steps that the consistent conditions allow; eta_l may be given.

    eps = sqrt(T) G eta_l / 0.9, so that D < 2.4 eps; with r = eta eta_l / eps the condition on H_1
    and H_2 reads 2 (r L tau)^2 + r L (4 C^2 + 6) + 2 G eta_l / eps <= 1.
    """
    _, G, *_ = problem  # L = 1
    K, tau = work.max_steps, work.max_delay
    if local_lr is None:
        local_lr = 0.9 * min(1 / (8 * K), 1 / (K * math.sqrt(120 * (tau + 1) * 2.4)))
    eps = math.sqrt(ROUNDS) * G * local_lr / 0.9
    a, b, rest = 2 * tau**2, 4 * (b1 / (1 - b1)) ** 2 + 6, 1 - 2 * G * local_lr / eps
    r = rest / b if a == 0 else (math.sqrt(b**2 + 4 * a * rest) - b) / (2 * a)
    lr = 0.9 * r * eps / local_lr
    return Setting(lr, local_lr, b1, eps, eps**2, buffer_size, CLIENTS, ROUNDS)


def visited(clients, setting, schedule, seed):
    """x_0, ..., x_T of one run, float64 `[T + 1, d]`: from a history that keeps them all."""
    rates = tuple(np.float32(x) for x in setting[:4])
    # Slots for all clients whatever m is: another m is then no other program.
    empty = CLIENTS - setting.buffer_size
    schedule = jax.tree.map(lambda a: np.pad(a, ((0, 0), (0, empty))), schedule)
    start = ccfl.Task(lambda key: {"x": jnp.asarray(clients.first)}, None, None)
    state = ccfl.init_state(start, server_at(rates), jax.random.key(seed), ROUNDS + 1)
    state, info = ccfl.run_rounds(
        Partial(round_of(clients.loss), rates), state, schedule, clients.data
    )
    assert (info.participants == setting.buffer_size).all()
    return np.asarray(state.history.models["x"], np.float64)


def run(clients, b1, buffer_size, steps, delay, local_lr=None, seeds=3):
    """Runs under the conditions: paths `[seeds, T + 1, d]`, mean ||grad f||^2, setting, work."""
    paths = []
    for seed in range(seeds):
        schedule = ccfl.random_schedule(seed, ROUNDS, CLIENTS, buffer_size, delay, steps, 1)
        work = theory.read_schedule(schedule, CLIENTS)
        assert (work.max_steps, work.max_delay) == (steps, delay)
        setting = allowed(clients.problem, work, b1, buffer_size, local_lr)
        for condition in theory.conditions(clients.problem, setting, work):
            assert condition.holds, str(condition)
        paths.append(visited(clients, setting, schedule, seed))
    paths = np.stack(paths)
    assert abs(paths).max() <= clients.radius
    measured = (clients.gradient(paths[:, :-1]) ** 2).sum(axis=-1).mean()
    return paths, measured, setting, work


@pytest.mark.parametrize("loss", ["quadratic", "bounded"])
@pytest.mark.parametrize(
    ("b1", "buffer_size", "steps", "delay", "left"),
    [
        (0, 20, 1, 0, 0.05),
        (0.9, 20, 4, 0, 0.9),  # this much momentum allows steps 55 times shorter
        (0.5, 20, 1, 5, 0.05),
        (0, 5, 4, 0, 0.05),
        (0, 5, 4, 5, 0.05),
        (0.5, 5, 1, 5, 0.05),
        (0, 2, 1, 2, 0.05),
        (0.5, 2, 8, 10, 0.05),
    ],
)
def test_runs_stay_under_the_consistent_bound(loss, b1, buffer_size, steps, delay, left):
    """Work is drawn from 1 to `steps`, delays from 0 to `delay`; `left` is of f(x_0) - f*."""
    clients = example(loss)
    paths, measured, setting, work = run(clients, b1, buffer_size, steps, delay)
    limit = theory.bound(clients.problem, setting, work)
    assert measured <= limit.value
    assert measured >= limit.value / 40  # nor is it a bound that anything would meet
    fallen = clients.value(paths[:, 0]) - clients.value(paths[:, -1])
    assert (fallen > (1 - left) * clients.problem.gap).all()


def test_client_sampling_breaks_the_printed_bound_and_not_the_consistent_one():
    """From the minimum, without momentum and noise: all movement is the sampling of clients."""
    clients = example("quadratic", noise=0.0, distance=0.0)
    _, measured, setting, work = run(clients, 0, 2, 1, 0, local_lr=1e-4)
    for condition in theory.conditions(clients.problem, setting, work, form="paper"):
        assert condition.holds, str(condition)
    printed, repaired = (
        theory.bound(clients.problem, setting, work, form) for form in ("paper", "consistent")
    )
    assert printed.value < measured / 1000
    assert repaired.value / 200 < measured <= repaired.value
    assert run(clients, 0, CLIENTS, 1, 0, local_lr=1e-4)[1] <= printed.value  # nobody is left out


def test_the_floor_grows_with_the_noise_of_batches():
    """From the minimum of equal clients: all movement is noise, and its square goes with sigma_l^2.

    So does the bound, where all but noise and Phi, which is G^2's and G the samples', is next to 0.
    """
    measured, limits = [], []
    for noise in (0.1, 1.0):
        clients = example("quadratic", spread=0.0, noise=noise, distance=0.0)
        _, found, setting, work = run(clients, 0.5, 2, 2, 0, local_lr=1e-4)
        measured.append(found)
        limits.append(theory.bound(clients.problem, setting, work))
        assert limits[-1].value / 200 < found <= limits[-1].value
    assert measured[1] / measured[0] == pytest.approx(100, rel=0.1)
    assert limits[1].noise / limits[0].noise == pytest.approx(100, rel=0.1)
