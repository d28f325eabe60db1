"""The theorem in numbers: conditions, terms, bound and corollary against their formulas."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import make_schedule
from refusal import refused

from ccfl_jax import theory
from ccfl_jax.theory import Problem, Setting, Work

PROBLEM = Problem(L=2.0, G=3.0, sigma_l=0.7, sigma_g=0.4, d=10, gap=5.0)
RATES = {"server_lr": 0.5, "local_lr": 1e-3, "b1": 0.9, "eps": 0.1, "initial_accumulator": 0.1**2}
SETTING = Setting(**RATES, buffer_size=5, num_clients=20, rounds=500)
WORK = Work(phi_1=2.0, phi_2=14 / 3, phi_3=11 / 18, max_steps=3, max_delay=4, mean_delay=2.0)


def test_work_and_delays_of_the_slots_that_train():
    """K = 2, 4 and 1 of delays 0, 1 and 2; the delay of 3 and the work of 9 are of no upload."""
    late, work = [[0, 0], [1, 0], [0, 2], [3, 3]], [[2, 0], [4, 9], [9, 1], [0, 9]]
    present = [[1, 1], [1, 0], [0, 1], [1, 0]]
    s = make_schedule([[0, 1], [2, 3], [0, 1], [1, 0]], late, work, present)
    found = theory.read_schedule(s, 5)
    assert found == pytest.approx((7 / 3, 21 / 3, (1 / 2 + 1 / 4 + 1) / 3, 4, 2, 1.0))
    epochs = make_schedule(client=[[0, 1]], work=[[2, 3]])
    in_steps = theory.read_schedule(epochs, 2, steps=np.array([[2 * 4, 3 * 1]]))
    assert in_steps == (5.5, 36.5, (1 / 8 + 1 / 3) / 2, 8, 0, 0.0)
    message = "schedule: expected at least one slot with work, found none"
    refused(message, theory.read_schedule, make_schedule([[0]], work=0), 1)


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


def test_conditions_as_printed():
    found = theory.conditions(PROBLEM, SETTING, WORK, form="paper")
    h = (2 * 0.25 * 4 * 16) * 1e-6 + (4 * 0.5 * 2 * 81 + 6 * 0.5 * 2 * 0.1 + 2 * 3 * 0.1) * 1e-3
    right = [1 / (8 * 3 * 2), (120 * 4 * 0.1 * 4 * 9) ** -0.5, 0.1 / (500**0.5 * 3), 0.01]
    assert [c.left for c in found] == pytest.approx([1e-3, 1e-3, 1e-3, h])
    assert [c.right for c in found] == pytest.approx(right)
    assert [c.holds for c in found] == [True, True, True, False]
    assert all(c.form == "paper" for c in found)
    assert str(found[0]) == "eta_l <= 1/(8 K L): 0.001 and 0.02083, holds (paper)"
    still = WORK._replace(max_delay=0, mean_delay=0.0)
    assert theory.conditions(PROBLEM, SETTING, still, form="paper")[1].right == math.inf


def test_conditions_repaired():
    found = theory.conditions(PROBLEM, SETTING, WORK)
    D = 0.1 + (0.01 + 500 * 1e-6 * 9) ** 0.5
    h = 32e-6 + (4 * 0.5 * 2 * 81 * 0.1 + 6 * 0.5 * 2 * 0.1 + 2 * 3 * 0.1) * 1e-3
    second = (0.1 / (120 * 4 * 9 * 5 * D)) ** 0.5
    right = [1 / (8 * 3 * 2), second, 0.1 / (500**0.5 * 3), 0.01, 0.01]
    assert [c.left for c in found] == pytest.approx([1e-3, 1e-3, 1e-3, h, 0.01])
    assert [c.right for c in found] == pytest.approx(right)
    names = [c.name for c in found[3:]]
    assert names == ["H_1 eta_l^2 + H_2 eta_l <= eps^2", "initial_accumulator = eps^2"]
    assert found[-1].holds and all(c.form == "consistent" for c in found)
    usual = theory.conditions(PROBLEM, SETTING._replace(initial_accumulator=0.0), WORK)
    assert [c.holds for c in usual] == [True, True, True, False, False]


def test_corollary():
    one_k = Work(2.0, 4.0, 0.5, 2, 1, 0.5)
    long = SETTING._replace(rounds=160)  # m K^5 = 160, (T / (m K))^(1/4) = 2
    printed = theory.corollary(PROBLEM, long, one_k, form="paper")
    assert [(c.left, c.right) for c in printed] == [(2, pytest.approx(2)), (160, 160), (1, 2)]
    assert all(c.holds and c.form == "paper" for c in printed)
    uneven, late = one_k._replace(phi_1=1.9), one_k._replace(max_delay=3)
    for k, pair in enumerate([(long, uneven), (long._replace(rounds=159), one_k), (long, late)]):
        found = theory.corollary(PROBLEM, *pair, form="paper")
        assert [c.holds for c in found].index(False) == k
    repaired = theory.corollary(PROBLEM, long, one_k)
    assert [c.left for c in repaired[3:]] == pytest.approx([5 * 2 * 4 / 0.01, 15 * 0.4])
    assert [c.holds for c in repaired] == [True] * 3 + [False] * 2
    assert theory.corollary(PROBLEM, long._replace(buffer_size=20), one_k)[-1].holds
    assert theory.corollary(PROBLEM._replace(sigma_g=0.0), long, one_k)[-1].holds


sizes, spreads = st.floats(0.1, 10), st.floats(0, 5)
problems = st.builds(Problem, sizes, sizes, spreads, spreads, st.integers(1, 100), st.floats(0, 10))


@st.composite
def settings_of_runs(draw):
    n, eps = draw(st.integers(1, 40)), draw(st.floats(1e-3, 3))
    rates = st.tuples(st.floats(1e-3, 10), st.floats(1e-5, 0.1), st.floats(0, 0.95))
    sizes = draw(st.integers(1, n)), n, draw(st.integers(1, 10_000))
    return Setting(*draw(rates), eps, eps**2, *sizes)


@st.composite
def works(draw):
    steps = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    delay = draw(st.integers(0, 9))
    phi = [float(np.mean(np.array(steps, float) ** power)) for power in (1, 2, -1)]
    return Work(*phi, max(steps), delay, delay / 2)


@given(problems, settings_of_runs(), works())
def test_bounds_grow_with_what_makes_a_problem_harder_and_with_the_repairs(problem, setting, work):
    values, slack = [], 1 + 1e-12
    for form in ("paper", "consistent"):
        found = theory.bound(problem, setting, work, form)
        values.append(found.value)
        assert found.form == form and found.value == pytest.approx(sum(found[2:]))
        for name in ("L", "G", "sigma_l", "sigma_g", "d", "gap"):
            harder = problem._replace(**{name: getattr(problem, name) * 2})
            assert theory.bound(harder, setting, work, form).value * slack >= found.value, name
        later = work._replace(max_delay=work.max_delay + 1)
        assert theory.bound(problem, setting, later, form).value * slack >= found.value
        if setting.buffer_size < setting.num_clients:
            more = setting._replace(buffer_size=setting.buffer_size + 1)
            assert theory.bound(problem, more, work, form).value <= found.value * slack
    assert values[1] * slack >= values[0]


@pytest.mark.parametrize(("changes", "message"), [
    ({"L": -1.0}, "L: expected a finite number > 0, found -1.0"),
    ({"G": 0.0}, "G: expected a finite number > 0, found 0.0"),
    ({"sigma_g": math.nan}, "sigma_g: expected a finite number >= 0, found nan"),
    ({"d": 1.5}, "d: expected an integer >= 1, found 1.5"),
    ({"gap": math.inf}, "gap: expected a finite number >= 0, found inf"),
    ({"b1": 1.0}, "b1: expected 0 <= b1 < 1, found 1.0"),
    ({"eps": 0.0}, "eps: expected a finite number > 0, found 0.0"),
    ({"local_lr": "x"}, "local_lr: expected a finite number > 0, found 'x'"),
    ({"rounds": True}, "rounds: expected an integer >= 1, found True"),
    ({"buffer_size": 21}, "buffer_size: expected an integer from 1 to 20, found 21"),
    ({"max_delay": -1}, "max_delay: expected an integer >= 0, found -1"),
    ({"phi_3": 0.0}, "phi_3: expected a finite number > 0, found 0.0"),
    ({"form": "other"}, "form: expected paper, consistent, found 'other'"),
])  # fmt: skip
def test_numbers_out_of_range_and_unknown_forms_are_refused(changes, message):
    given = [
        one._replace(**{name: value for name, value in changes.items() if name in one._fields})
        for one in (PROBLEM, SETTING, WORK)
    ]
    for function in (theory.conditions, theory.terms, theory.bound, theory.corollary):
        refused(message, function, *given, form=changes.get("form", "consistent"))
