r"""The paper's convergence theorem in numbers: conditions, terms, bound, corollary.

For CC-FedAdagrad (section 4 of the paper), uploads divided by local steps,

.. math:: \frac{1}{T}\sum_t E\|\nabla f(x_t)\|^2 \le \frac{8\epsilon (f(z_0)-f^*)}{\eta\eta_l T}
          + \frac{\Phi}{T} + \Phi_g\sigma_g^2 + \Phi_l\sigma_l^2, \qquad z_0 = x_0

in one of two forms, which every result names. `form="paper"` is what is printed; its proof does not
hold, nor does the bound. `form="consistent"` is what the same proof gives once repaired:

* The proof needs v_hat_0 >= eps^2 and v_hat_t <= T eta_l^2 G^2 <= eps^2, which contradict each
  other. Here v_hat_0 = eps^2; sqrt(v_hat_t) + eps lies between 2 eps and D = eps + sqrt(eps^2 +
  T eta_l^2 G^2), and every term becomes D / (2 eps) times the printed one: at most (1 + sqrt 2) / 2
  times, by the third condition.
* H_2 has the eps that its derivation has in the C_beta term.
* The second condition makes 30 eta eta_l^3 L^2 K_max^2 (tau + 1) / eps at most eta eta_l / (4 D):
  up to tau + 1 rounds use a gradient, and eps in print is on the wrong side.
* K_max^2 stands for phi_2: it multiplies sigma_g, a mean over clients whose K may differ.
* m of n clients are a sample without replacement. Its variance, lost in print, is the term
  `sampling`: phi_3's factor in Phi_l with (n - m) / (m (n - 1)) V for phi_3 / m, where V bounds the
  spread of the clients' mean local gradients,

  .. math:: V = \min(G^2, 3\sigma_g^2 + L^2\eta_l^2G^2K_{max}^2
                + 3L^2 (\tau\eta\eta_lG / (2\epsilon))^2)

  (k local steps are no longer than k eta_l G, tau server steps than tau eta eta_l G / (2 eps)).

One gap needs no change: noise and signal of an upload are not independent, so that E||Delta||^2 is
at most twice the sum of their squares, not the sum; the constants printed for the terms with
E||Delta||^2 are at least twice what v_hat >= eps^2 gives. 1/K_t has the main text's 1/m in both
forms (the appendix drops it).

Both assume rounds of exactly m clients, drawn uniformly without replacement and independently of
the past, work and delays, and unbiased local gradients: batches drawn with replacement, as they
are where local work is counted in steps.

All functions raise ValueError for a number outside its range or an unknown form.
"""

import math
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from ccfl_jax.checks import check_number, check_whole, plain

Form = Literal["paper", "consistent"]
_MAY_BE_ZERO = {"sigma_l", "sigma_g", "gap", "b1", "initial_accumulator", "max_delay", "mean_delay"}
_WHOLE = {"d", "buffer_size", "num_clients", "rounds", "max_steps", "max_delay"}


class Problem(NamedTuple):
    """What the theorem assumes of the clients' losses, in the paper's symbols.

    Attributes:
        L: every f_i has L-Lipschitz gradients.
        G: the largest norm of a stochastic gradient.
        sigma_l: root of the largest mean squared error of a stochastic gradient (of one batch).
        sigma_g: root of the largest mean over clients of ||grad f_i(x) - grad f(x)||^2.
        d: number of parameters.
        gap: f(x_0) - f*.

    Examples:
        >>> problem = ccfl.theory.Problem(L=1.0, G=1.0, sigma_l=0.5, sigma_g=0.5, d=100, gap=2.0)
        >>> problem.gap
        2.0
        >>> problem._replace(L=10.0).L
        10.0
    """

    L: float
    G: float
    sigma_l: float
    sigma_g: float
    d: int
    gap: float


class Setting(NamedTuple):
    """A run of CC-FedAdagrad: eta, eta_l, beta, eps, v_hat's start, m, n and T, in this order.

    Examples:
        >>> setting = ccfl.theory.Setting(
        ...     server_lr=0.1,
        ...     local_lr=1e-4,
        ...     b1=0.9,
        ...     eps=0.1,
        ...     initial_accumulator=0.01,
        ...     buffer_size=5,
        ...     num_clients=30,
        ...     rounds=100,
        ... )
        >>> setting._replace(local_lr=1e-3).local_lr
        0.001
    """

    server_lr: float
    local_lr: float
    b1: float
    eps: float
    initial_accumulator: float
    buffer_size: int
    num_clients: int
    rounds: int


class Work(NamedTuple):
    """Work and delays of a schedule: the theorem's phi_1 to phi_3, K_max, tau; the mean delay.

    Examples:
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=100, num_clients=30)
        >>> work = ccfl.theory.read_schedule(schedule, num_clients=30)
        >>> work.max_steps, work.max_delay, round(work.phi_1, 1)  # the mean work of a slot
        (6, 5, 3.4)
    """

    phi_1: float
    phi_2: float
    phi_3: float
    max_steps: int
    max_delay: int
    mean_delay: float


class Condition(NamedTuple):
    """An inequality "left <= right" (an equation where the name says "="), and whether it holds.

    Examples:
        >>> problem = ccfl.theory.Problem(L=1.0, G=1.0, sigma_l=0.5, sigma_g=0.5, d=100, gap=2.0)
        >>> setting = ccfl.theory.Setting(0.1, 1e-4, 0.9, 0.1, 0.01, 5, 30, 100)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=100, num_clients=30)
        >>> work = ccfl.theory.read_schedule(schedule, num_clients=30)
        >>> first = ccfl.theory.conditions(problem, setting, work)[0]
        >>> first.name, first.holds
        ('eta_l <= 1/(8 K L)', True)
        >>> print(first)
        eta_l <= 1/(8 K L): 0.0001 and 0.02083, holds (consistent)
    """

    name: str
    left: float
    right: float
    holds: bool
    form: Form

    def __str__(self) -> str:
        verdict = "holds" if self.holds else "fails"
        return f"{self.name}: {self.left:.4g} and {self.right:.4g}, {verdict} ({self.form})"


class Terms(NamedTuple):
    """The bound's parts: descent (f(x_0) - f*) + Phi/T + Phi_g sigma_g^2 + Phi_l sigma_l^2
    + sampling; D bounds sqrt(v_hat) + eps.

    Examples:
        >>> problem = ccfl.theory.Problem(L=1.0, G=1.0, sigma_l=0.5, sigma_g=0.5, d=100, gap=2.0)
        >>> setting = ccfl.theory.Setting(0.1, 1e-4, 0.9, 0.1, 0.01, 5, 30, 100)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=100, num_clients=30)
        >>> work = ccfl.theory.read_schedule(schedule, num_clients=30)
        >>> terms = ccfl.theory.terms(problem, setting, work)
        >>> terms.form, round(terms.D, 2)  # what bounds sqrt(v_hat) + eps
        ('consistent', 0.2)
    """

    form: Form
    D: float
    descent: float
    Phi: float
    Phi_g: float
    Phi_l: float
    sampling: float


class Bound(NamedTuple):
    """On the mean squared gradient norm: `value`, the sum of the five shares after it.

    Examples:
        >>> problem = ccfl.theory.Problem(L=1.0, G=1.0, sigma_l=0.5, sigma_g=0.5, d=100, gap=2.0)
        >>> setting = ccfl.theory.Setting(0.1, 1e-4, 0.9, 0.1, 0.01, 5, 30, 100)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=100, num_clients=30)
        >>> work = ccfl.theory.read_schedule(schedule, num_clients=30)
        >>> bound = ccfl.theory.bound(problem, setting, work)
        >>> max(bound._fields[2:], key=lambda share: getattr(bound, share))  # the largest share
        'descent'
    """

    form: Form
    value: float
    descent: float
    momentum: float
    heterogeneity: float
    noise: float
    sampling: float


def read_schedule(schedule: Any, num_clients: int, steps: np.ndarray | None = None) -> Work:
    """phi_1 to phi_3, the largest K_{t,i}, the largest and the mean staleness of a `Schedule`.

    Over present slots with work. They are exact where all slots have the same work, otherwise the
    means of one draw.

    Args:
        schedule: a `Schedule`.
        num_clients: n.
        steps: `[rounds, slots]`, local steps of each slot; needed where `work` counts epochs:
            work ceil(n_i / B), or `info.steps` of a run. By default `work`.

    Raises:
        ValueError: for a schedule without any work, and as `Schedule.stats`.

    Examples:
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=100, num_clients=30)
        >>> work = ccfl.theory.read_schedule(schedule, num_clients=30)
        >>> work.max_delay, round(work.mean_delay, 1)
        (5, 2.5)
        >>> steps = schedule.work * 4  # of clients whose epochs have 4 steps
        >>> ccfl.theory.read_schedule(schedule, 30, steps).max_steps
        24
    """
    stats = schedule.stats(num_clients, steps)
    steps = np.asarray(schedule.work if steps is None else steps)
    counted = np.asarray(schedule.present) & (steps > 0)
    if not counted.any():
        raise ValueError("schedule: expected at least one slot with work, found none")
    delays = np.asarray(schedule.staleness)[counted]
    phi = (stats["phi_1"], stats["phi_2"], stats["phi_3"])
    return Work(*phi, int(steps[counted].max()), int(delays.max()), float(delays.mean()))


def conditions(
    problem: Problem, setting: Setting, work: Work, form: Form = "consistent"
) -> tuple[Condition, ...]:
    r"""The theorem's conditions on the step sizes; of `problem` only L and G matter.

    In the consistent form the second is :math:`\eta_l \le \sqrt{\epsilon / (120 L^2 K_{max}^2
    (\tau+1) D)}`, and the accumulator has to start at eps^2, which the paper's proof assumes and
    its theorem does not state. The printed second one is infinite at tau = 0.

    Examples:
        >>> problem = ccfl.theory.Problem(L=1.0, G=1.0, sigma_l=0.5, sigma_g=0.5, d=100, gap=2.0)
        >>> setting = ccfl.theory.Setting(0.1, 1e-4, 0.9, 0.1, 0.01, 5, 30, 100)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=100, num_clients=30)
        >>> work = ccfl.theory.read_schedule(schedule, num_clients=30)
        >>> for condition in ccfl.theory.conditions(problem, setting, work):
        ...     print(condition)
        eta_l <= 1/(8 K L): 0.0001 and 0.02083, holds (consistent)
        eta_l <= sqrt(eps/(120 L^2 K^2 (tau+1) D)): 0.0001 and 0.004392, holds (consistent)
        eta_l <= eps/(sqrt(T) G): 0.0001 and 0.01, holds (consistent)
        H_1 eta_l^2 + H_2 eta_l <= eps^2: 0.00035 and 0.01, holds (consistent)
        initial_accumulator = eps^2: 0.01 and 0.01, holds (consistent)
    """
    problem, setting, work = _checked(form, problem, setting, work)
    L, G = problem.L, problem.G
    eta, eta_l, b1, eps = setting[:4]
    K, tau, T = work.max_steps, work.max_delay, setting.rounds
    printed = form == "paper"
    within = eps * tau if printed else (tau + 1) * _largest_divisor(problem, setting, form) / eps
    second = 1 / (L * K * math.sqrt(120 * within)) if within else math.inf
    c_beta = b1 / (1 - b1)
    h_1 = 2 * eta**2 * L**2 * tau**2
    h_2 = 4 * eta * L * c_beta**2 * (1 if printed else eps) + 6 * eta * L * eps + 2 * G * eps
    right = "1/sqrt(120 L^2 eps tau K^2)" if printed else "sqrt(eps/(120 L^2 K^2 (tau+1) D))"
    found = [
        _at_most("eta_l <= 1/(8 K L)", eta_l, 1 / (8 * K * L), form),
        _at_most(f"eta_l <= {right}", eta_l, second, form),
        _at_most("eta_l <= eps/(sqrt(T) G)", eta_l, eps / (math.sqrt(T) * G), form),
        _at_most("H_1 eta_l^2 + H_2 eta_l <= eps^2", h_1 * eta_l**2 + h_2 * eta_l, eps**2, form),
    ]
    if not printed:
        start = setting.initial_accumulator
        same = math.isclose(start, eps**2, rel_tol=1e-6)  # eps may have been rounded to float32
        found.append(Condition("initial_accumulator = eps^2", start, eps**2, same, form))
    return tuple(found)


def terms(problem: Problem, setting: Setting, work: Work, form: Form = "consistent") -> Terms:
    r"""The factors of the bound. In print, with C = beta / (1 - beta) and D = 2 eps,

    .. math:: \Phi = 4dG^2C + 4dL\eta\eta_lG^2C^2/\epsilon, \quad
              \Phi_g = 240\eta_l^2L^2\phi_2, \quad
              \Phi_l = 40\eta_l^2L^2\phi_1 + N\phi_3/m, \\
              N = (4\eta\eta_lLC^2 + 6L\eta\eta_l + 2\eta_lG)/\epsilon
                  + 2\eta^2\eta_l^2L^2\tau^2/\epsilon^2

    the first factor is 8 eps / (eta eta_l T) and `sampling` is 0. The head of the module says what
    the consistent form changes.

    Examples:
        >>> problem = ccfl.theory.Problem(L=1.0, G=1.0, sigma_l=0.5, sigma_g=0.5, d=100, gap=2.0)
        >>> setting = ccfl.theory.Setting(0.1, 1e-4, 0.9, 0.1, 0.01, 5, 30, 100)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=100, num_clients=30)
        >>> work = ccfl.theory.read_schedule(schedule, num_clients=30)
        >>> printed = ccfl.theory.terms(problem, setting, work, form="paper")
        >>> printed.D, printed.sampling
        (0.2, 0.0)
        >>> ccfl.theory.terms(problem, setting, work).sampling > 0  # of 5 among 30 clients
        True
    """
    problem, setting, work = _checked(form, problem, setting, work)
    L, G, _, sigma_g, d, _ = problem
    eta, eta_l, b1, eps, _, m, n, T = setting
    tau, c_beta = work.max_delay, b1 / (1 - b1)
    divisor = _largest_divisor(problem, setting, form)
    scale = divisor / (2 * eps)
    K_squared = work.phi_2 if form == "paper" else work.max_steps**2
    phi = 4 * d * G**2 * c_beta + 4 * d * L * eta * eta_l * G**2 * c_beta**2 / eps
    per_variance = (4 * eta * eta_l * L * c_beta**2 + 6 * L * eta * eta_l + 2 * eta_l * G) / eps
    per_variance += 2 * (eta * eta_l * L * tau / eps) ** 2
    phi_l = 40 * (eta_l * L) ** 2 * work.phi_1 + per_variance * work.phi_3 / m
    sampling = 0.0
    if form == "consistent" and m < n:
        drift = (L * eta_l * G) ** 2 * (K_squared + 3 * (tau * eta / (2 * eps)) ** 2)
        spread = min(G**2, 3 * sigma_g**2 + drift)
        sampling = scale * per_variance * (n - m) / (m * (n - 1)) * spread
    return Terms(
        form=form,
        D=divisor,
        descent=scale * 8 * eps / (eta * eta_l * T),
        Phi=scale * phi,
        Phi_g=scale * 240 * (eta_l * L) ** 2 * K_squared,
        Phi_l=scale * phi_l,
        sampling=sampling,
    )


def bound(problem: Problem, setting: Setting, work: Work, form: Form = "consistent") -> Bound:
    """The theorem's bound on mean_t E||grad f(x_t)||^2, t = 0..T-1, and its shares.

    It is a bound only where all `conditions` of its form hold, and for form="paper" not even then:
    from the minimum, without momentum and noise, the printed one tends to 0 with eta_l, while
    client sampling still moves the model by eta eta_l / eps.

    Examples:
        >>> problem = ccfl.theory.Problem(L=1.0, G=1.0, sigma_l=0.5, sigma_g=0.5, d=100, gap=2.0)
        >>> setting = ccfl.theory.Setting(0.1, 1e-4, 0.9, 0.1, 0.01, 5, 30, 100)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=100, num_clients=30)
        >>> work = ccfl.theory.read_schedule(schedule, num_clients=30)
        >>> longer = setting._replace(rounds=10**6)
        >>> for one in (setting, longer):
        ...     print(f"{ccfl.theory.bound(problem, one, work).value:.3g}")
        1.64e+03
        0.204
    """
    parts = terms(problem, setting, work, form)
    shares = (
        parts.descent * problem.gap,
        parts.Phi / setting.rounds,
        parts.Phi_g * problem.sigma_g**2,
        parts.Phi_l * problem.sigma_l**2,
        parts.sampling,
    )
    return Bound(form, sum(shares), *shares)


def corollary(
    problem: Problem, setting: Setting, work: Work, form: Form = "consistent"
) -> tuple[Condition, ...]:
    r"""When :math:`O(\sqrt{1/(mKT)})` is the leading term, with eta_l = Theta(1 / sqrt T) and
    eta = Theta(sqrt(m K)): the corollary's conditions, which fix orders and no constants.

    The paper requires one K, T >= m K^5 and tau <= (T / (m K))^(1/4). The consistent form adds the
    theorem's last condition at these rates, and that there is no variance of client sampling:
    otherwise its term, of order sqrt(K / (m T)) sigma_g^2, leads and K does not speed up.

    Examples:
        >>> problem = ccfl.theory.Problem(L=1.0, G=1.0, sigma_l=0.5, sigma_g=0.5, d=100, gap=2.0)
        >>> setting = ccfl.theory.Setting(0.1, 1e-4, 0.9, 0.1, 0.01, 5, 30, 100)
        >>> schedule = ccfl.random_schedule(seed=0, num_rounds=100, num_clients=30)
        >>> work = ccfl.theory.read_schedule(schedule, num_clients=30)
        >>> for condition in ccfl.theory.corollary(problem, setting, work):
        ...     print(condition)
        K_max <= phi_1 (one K): 6 and 3.42, fails (consistent)
        m K^5 <= T: 3.888e+04 and 100, fails (consistent)
        tau <= (T/(m K))^(1/4): 5 and 1.351, fails (consistent)
        m K L^2 max(tau^2, 1)/eps^2 <= T: 7.5e+04 and 100, fails (consistent)
        (n - m) sigma_g <= 0: 12.5 and 0, fails (consistent)
    """
    problem, setting, work = _checked(form, problem, setting, work)
    m, n, T, eps = setting.buffer_size, setting.num_clients, setting.rounds, setting.eps
    K, tau = work.max_steps, work.max_delay
    found = [
        # With slack: a mean of equal numbers may round below them.
        _at_most("K_max <= phi_1 (one K)", K, work.phi_1 * (1 + 1e-12), form),
        _at_most("m K^5 <= T", m * K**5, T, form),
        _at_most("tau <= (T/(m K))^(1/4)", tau, (T / (m * K)) ** 0.25, form),
    ]
    if form == "consistent":
        least = m * K * problem.L**2 * max(tau**2, 1) / eps**2
        found.append(_at_most("m K L^2 max(tau^2, 1)/eps^2 <= T", least, T, form))
        found.append(_at_most("(n - m) sigma_g <= 0", (n - m) * problem.sigma_g, 0.0, form))
    return tuple(found)


def _at_most(name: str, left: float, right: float, form: Form) -> Condition:
    return Condition(name, float(left), float(right), bool(left <= right), form)


def _largest_divisor(problem: Problem, setting: Setting, form: Form) -> float:
    """D, the largest possible sqrt(v_hat_t) + eps."""
    eps = setting.eps
    grown = 0.0 if form == "paper" else setting.rounds * (setting.local_lr * problem.G) ** 2
    return eps + math.sqrt(eps**2 + grown)


def _checked(form: str, problem: Problem, setting: Setting, work: Work) -> tuple:
    """The same, of Python's numbers; ValueError for one outside its range."""
    if form not in get_args(Form):
        raise ValueError(f"form: expected {', '.join(get_args(Form))}, found {form!r}")
    for name, value in (problem._asdict() | setting._asdict() | work._asdict()).items():
        positive = name not in _MAY_BE_ZERO
        if name in _WHOLE:
            check_whole(name, value, int(positive))
        else:
            check_number(name, value, above=positive)
    if setting.b1 >= 1:
        raise ValueError(f"b1: expected 0 <= b1 < 1, found {setting.b1}")
    check_whole("buffer_size", setting.buffer_size, 1, setting.num_clients)
    return Problem(*map(plain, problem)), Setting(*map(plain, setting)), Work(*map(plain, work))
