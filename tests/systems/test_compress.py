"""Compressed uploads and server steps against NumPy, and what they would take to send."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from quadratic_clients import D, N, both_precisions, busy, delta, run, twin
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax import systems, terms

UPLOAD = {"a": jnp.array([0.3, -1.0, 0.05]), "b": jnp.array([[2.0], [-0.7]])}
FLAT = np.array([0.3, -1.0, 0.05, 2.0, -0.7])
DRAWS = 20_000


def flat(tree):
    """Of `UPLOAD`'s form, stacked or not, as rows."""
    return np.concatenate([np.asarray(tree["a"]), np.asarray(tree["b"])[..., 0]], axis=-1)


def sent(compressor, upload=UPLOAD, **extra):
    return compressor.update(upload, compressor.init(upload), upload, **extra)[0]


def many(compressor):
    """What is sent in many visits, float64 `[DRAWS, 5]`."""
    keys = jax.random.split(jax.random.key(0), DRAWS)
    return flat(jax.vmap(lambda key: sent(compressor, key=key))(keys)).astype(float)


def largest(x, k):
    kept = np.argsort(-np.abs(x), kind="stable")[:k]
    return np.where(np.isin(np.arange(x.size), kept), x, 0)


def signs(x):
    return np.where(x < 0, -1, 1) * np.abs(x).mean()


@pytest.mark.parametrize(
    ("compressor", "of"),
    [(systems.top_k(1 / 3), lambda x: largest(x, 1)), (systems.sign(), signs)],
)
def test_error_feedback_of_clients(compressor, of):
    schedule, error = busy(), np.zeros((N, D))

    def visit(t, xs, i, s, k, last):
        wanted = delta(xs, t, i, s, k) + error[i]
        return of(wanted), wanted - of(wanted)

    def step(t, x, uploads, who):
        for (_, rest), (i, _, _, last) in zip(uploads, who, strict=True):
            if last:
                error[i] = rest
        return x - np.mean([out for out, _ in uploads], axis=0)

    xs = twin(schedule, visit, step)
    rule = terms.sending(systems.with_error_feedback(compressor))
    both_precisions(schedule, xs, ccfl.cc_fedavg(), rule=rule)
    assert (np.abs(error) > 0).any()


def test_a_compressed_server_step():
    schedule, error = busy(), np.zeros(D)

    def step(t, x, uploads, who):
        wanted = -0.3 * np.mean(uploads, axis=0) + error
        error[:] = wanted - largest(wanted, 1)
        return x + largest(wanted, 1)

    xs = twin(schedule, lambda t, xs, *one: delta(xs, t, *one[:3]), step)
    compressor = systems.with_error_feedback(systems.top_k(1 / 3))
    both_precisions(schedule, xs, optax.chain(ccfl.cc_fedsgd(0.3), compressor))
    steps = np.diff(xs, axis=0)
    assert ((steps != 0).sum(axis=1) <= 1).all() and (steps != 0).any(axis=0).all()


def test_visits_draw_by_themselves_whatever_the_lanes():
    schedule, rule = busy(), terms.sending(systems.random_k(1 / 3))
    server = optax.chain(ccfl.cc_fedsgd(0.3), systems.quantise(2))
    one, _ = run(schedule, server, rule=rule, lanes=1)
    three, _ = run(schedule, server, rule=rule, lanes=3)
    np.testing.assert_allclose(one.params["x"], three.params["x"], rtol=1e-5)
    drawn = [sent(systems.random_k(0.4), key=jax.random.key(k)) for k in range(8)]
    assert len({tuple(flat(one) != 0) for one in drawn}) > 1


def test_top_k_takes_k_of_all_leaves_together():
    for k in range(1, 6):
        np.testing.assert_array_equal(
            flat(sent(systems.top_k(k / 5))), largest(FLAT, k).astype("f")
        )
    equal = jnp.array([1.0, -2.0, 2.0, -2.0, 0.0])
    np.testing.assert_array_equal(sent(systems.top_k(0.4), equal), [0, -2, 2, 0, 0])
    x = np.random.default_rng(0).normal(size=1000).astype("f")
    for k in (1, 70, 999):
        np.testing.assert_array_equal(sent(systems.top_k(k / 1000), jnp.asarray(x)), largest(x, k))
    short = sent(systems.top_k(0.4), jnp.asarray(FLAT, jnp.bfloat16))
    assert short.dtype == jnp.float32 and (short != 0).sum() == 2


def test_random_k_is_right_in_the_mean():
    found = many(systems.random_k(0.4))
    assert ((found != 0).sum(axis=1) == 2).all()
    # Of one coordinate: 5/2 x with chance 2/5, variance 3/2 x^2.
    error = np.abs(found.mean(axis=0) - FLAT)
    assert (error < 5 * np.abs(FLAT) * (1.5 / DRAWS) ** 0.5).all()
    # Of all: (d/k - 1) |x|^2, exactly. One term is at most (1.5^2 + 1) |x|^2.
    square, norm = ((found - FLAT) ** 2).sum(axis=1), (FLAT**2).sum()
    assert abs(square.mean() - 1.5 * norm) < 5 * square.std() / DRAWS**0.5
    # Each of the ten pairs as often.
    _, count = np.unique(found != 0, axis=0, return_counts=True)
    assert len(count) == 10
    assert (np.abs(count - DRAWS / 10) < 5 * (DRAWS * 0.09) ** 0.5).all()
    whole = sent(systems.random_k(0.4), key=jax.random.key(0))
    plain = sent(systems.random_k(0.4, scaled=False), key=jax.random.key(0))
    np.testing.assert_allclose(flat(plain) * 2.5, flat(whole), rtol=1e-6)


@pytest.mark.parametrize("levels", [1, 4])
def test_quantised_numbers_are_right_in_the_mean(levels):
    found, norm = many(systems.quantise(levels)), np.linalg.norm(FLAT)
    steps = found / (norm / levels)
    np.testing.assert_allclose(steps, steps.round(), atol=1e-5)
    assert np.abs(steps.round()).max() <= levels
    # A number is one of two neighbours, whose variance is at most a quarter of the squared step.
    error = np.abs(found.mean(axis=0) - FLAT)
    assert (error < 5 * norm / levels / 2 / DRAWS**0.5 + 1e-6).all()
    square = ((found - FLAT) ** 2).sum(axis=1).mean()
    assert square <= min(5 / levels**2, 5**0.5 / levels) * norm**2
    none = sent(systems.quantise(levels), optax.tree.zeros_like(UPLOAD), key=jax.random.key(0))
    assert (flat(none) == 0).all()


def test_signs_have_the_mean_size():
    np.testing.assert_allclose(flat(sent(systems.sign())), signs(FLAT), rtol=1e-6)
    each = np.concatenate([signs(FLAT[:3]), signs(FLAT[3:])])
    np.testing.assert_allclose(flat(sent(systems.sign(each_leaf=True))), each, rtol=1e-6)
    left = ((signs(FLAT) - FLAT) ** 2).sum()
    np.testing.assert_allclose(left, (FLAT**2).sum() - np.abs(FLAT).sum() ** 2 / 5)
    np.testing.assert_array_equal(sent(systems.sign(), jnp.array([0.0, -4.0])), [2, -2])


ALL = {
    "top_k": systems.top_k(0.2), "random_k": systems.random_k(0.2), "sign": systems.sign(),
    "quantise": systems.quantise(3), "leaves": systems.sign(each_leaf=True),
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("broken", [np.nan, -np.nan, np.inf])
def test_a_broken_number_is_not_lost(name, broken):
    for place in range(3):
        upload = {**UPLOAD, "a": UPLOAD["a"].at[place].set(broken)}
        assert not np.isfinite(flat(sent(ALL[name], upload, key=jax.random.key(place)))).all()


def test_bytes():
    model = {"w": jax.ShapeDtypeStruct((100, 10), "float32"), "b": jnp.zeros(10)}  # 1010 numbers
    sizes = {"top_k": 8 * 202, "random_k": 4 * 202 + 8, "sign": 127 + 4, "leaves": 127 + 8}
    sizes["quantise"] = -(-3 * 1010 // 8) + 4  # 7 values
    assert {name: systems.bytes_of(one, model) for name, one in ALL.items()} == sizes
    for name, one in ALL.items():
        assert systems.bytes_of(systems.with_error_feedback(one), model) == sizes[name]
    for levels, bits in ((1, 2), (2, 3), (4, 4), (7, 4), (8, 5)):
        assert systems.bytes_of(systems.quantise(levels), jnp.zeros(8)) == bits + 4
    assert systems.bytes_of(systems.top_k(1e-9), model) == 8
    assert systems.bytes_of(systems.top_k(0.07), jnp.zeros(100)) == 56
    chain = optax.chain(optax.clip(1.0), ALL["sign"])
    for whole in (None, chain, systems.with_error_feedback(chain)):
        assert systems.bytes_of(whole, model) == 4040
    told = systems.Compressor(*chain, ALL["sign"].nbytes)
    assert systems.bytes_of(told, model) == sizes["sign"]


def test_compressors_refuse_what_they_cannot_do():
    share = "share: expected a finite number > 0 and <= 1, found "
    for compressor in (systems.top_k, systems.random_k):
        for wrong in (0, 1.5, float("nan")):
            refused(f"{share}{wrong}", compressor, wrong)
    refused("levels: expected an integer from 1 to 8388608, found 0", systems.quantise, 0)
    message = "compressor: expected an optax transformation, found 3"
    refused(message, systems.with_error_feedback, 3)
    message = "key: expected the extra argument visit (terms.sending) or key (a server), found none"
    refused(message, sent, systems.quantise(3))
