"""Faults people met in other tools: arrays in a form that was not foreseen (NF-11)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import assert_trees_equal, federated, softmax_task
from refusal import matches, refused

import ccfl_jax as ccfl
from ccfl_jax import FederatedData, availability, speed
from ccfl_jax.data import check_labels

pytestmark = pytest.mark.usefixtures("quickly_compiled")
TASK, SERVER = softmax_task(), ccfl.cc_fedavg()
_, ARRAYS, LISTS = federated([5, 7, 4])
FLAT, OFFSETS = np.concatenate(LISTS).astype(np.int32), np.array([0, 5, 12, 16], np.int32)
SCHEDULE = ccfl.random_schedule(0, 2, 3, 2, max_delay=1)
ROUND = ccfl.build_round(TASK, SERVER, 0.1, batch_size=4)
FIRST = {"w": np.linspace(0, 1, 18, dtype="f").reshape(6, 3), "b": np.ones(3, "f")}
LABELS, SECONDS = np.arange(60) % 3, np.linspace(1, 2, 20)


def gone_on(form):
    """Rows of `ccfl.train` from a state whose parameters have this form."""
    simulation = ccfl.simulation(TASK, SERVER, 0.1, batch_size=4)
    state = simulation.init(jax.random.key(0), 2)
    state = state._replace(params=jax.tree.map(form, state.params))
    given = simulation, SCHEDULE, data_of(ARRAYS), ARRAYS
    return ccfl.train(*given, progress=False, state=state)[1][-1]["test_loss"]


def data_of(arrays):
    return FederatedData.from_offsets(arrays, FLAT, OFFSETS)


def trained(data, schedule=SCHEDULE):
    state = ccfl.init_state(TASK, SERVER, jax.random.key(0), 2)
    end, info = ccfl.run_rounds(ROUND, state, schedule, data)
    return end.params, info.train_loss


def streamed(data):
    return [trained(samples, piece) for piece, samples in ccfl.stream_rounds(SCHEDULE, data, 40000)]


X, Y = ARRAYS["x"], ARRAYS["y"]
NUMBERS = "expected bools or numbers of up to 64 bits, found"
INFINITE = np.where(np.arange(16)[:, None] % 7 == 3, np.inf, X)  # rows 3 and 10
ODD = {
    "masked": (np.ma.masked_array(X, X > 1), f"expected no masked numbers, found {(X > 1).sum()}"),
    "object": (X.astype(object), f"{NUMBERS} dtype object"),
    "text": (X.astype(str), f"{NUMBERS} dtype <U32"),
    "dates": (np.zeros(16, "M8[s]"), f"{NUMBERS} dtype datetime64[s]"),
    "times": (np.zeros(16, "m8[s]"), f"{NUMBERS} dtype timedelta64[s]"),
    "long": (X.astype(np.longdouble), f"{NUMBERS} dtype float128"),
    "none": (None, f"{NUMBERS} dtype object"),
    "ragged": ([[1.0], [1.0, 2.0]] * 8, "expected rows of one shape, found several"),
    "scalar": (np.float32(1), "expected a leading sample axis, found a scalar"),
    "large": (
        X.astype(float) * 1e300,
        "expected values of float32 (or jax_enable_x64), found ... to ...",
    ),
    "wide": (np.arange(16) + 2**31, "expected values of int32 (or jax_enable_x64), found ..."),
}
DOORS = {
    "from_indices": lambda arrays: FederatedData.from_indices(arrays, LISTS),
    "from_offsets": lambda arrays: data_of(arrays),
    "constructor": lambda arrays: trained(FederatedData(arrays, FLAT, OFFSETS)),
    "only": lambda arrays: FederatedData(arrays, FLAT, OFFSETS).only(range(3)),
    "stream": lambda arrays: streamed(FederatedData(arrays, FLAT, OFFSETS)),
    "evaluate": lambda arrays: ccfl.evaluate(TASK, FIRST, arrays),
    "evaluate_trials": lambda arrays: ccfl.evaluate_trials(
        TASK, jax.tree.map(lambda a: a[None], FIRST), arrays
    ),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("odd", ODD)
def test_nf_11_arrays_that_jax_cannot_hold_are_refused_by_name(odd, door):
    value, message = ODD[odd]
    refused(f"array 'x': {message}", DOORS[door], {"x": value, "y": Y})


@pytest.mark.parametrize("door", DOORS)
def test_nf_11_arrays_of_unequal_length_are_refused(door):
    message = "arrays: expected equal lengths, found {'x': 15, 'y': 16}"
    refused(message, DOORS[door], {"x": X[:-1], "y": Y})


LIKE_X = {
    "double": X.astype(np.float64), "lists": X.tolist(),
    "columns first": np.asfortranarray(X), "every second": np.repeat(X, 2, axis=0)[::2],
    "backwards": X[::-1].copy()[::-1], "none masked": np.ma.masked_array(X), "device": jnp.array(X),
    "longs": (X * 0 + Y[:, None]).astype(np.int64),
}  # fmt: skip
LIKE_X["read only"] = np.frombuffer(X.tobytes(), np.float32).reshape(X.shape)


@pytest.mark.parametrize("form", LIKE_X)
def test_nf_11_the_form_of_the_same_numbers_changes_nothing(form):
    plain = np.array(LIKE_X[form]).astype(np.int32 if form == "longs" else np.float32)
    ends = []
    for x in (LIKE_X[form], plain):
        arrays = {"x": x, "y": Y}
        found = FederatedData.from_indices(arrays, LISTS), data_of(arrays)
        ends.append([one.client(1)["x"].astype(plain.dtype) for one in found])
        ends[-1] += [ccfl.evaluate(TASK, FIRST, arrays)["loss"]]
        ends[-1] += [found[1].only([1]).arrays["x"], trained(found[1])] if form != "longs" else []
    assert_trees_equal(*ends)


def test_nf_11_lists_of_rows_may_be_integers_of_any_kind():
    """Unsigned ones would wrap around where one offset is taken from another."""
    expected = trained(data_of(ARRAYS))
    for dtype in (np.uint64, np.int64, np.uint8, list):
        lists = [a.tolist() if dtype is list else a.astype(dtype) for a in (FLAT, OFFSETS)]
        assert_trees_equal(trained(FederatedData(ARRAYS, *lists)), expected)
        assert_trees_equal(trained(FederatedData.from_offsets(ARRAYS, *lists)), expected)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (FLAT.astype(float), "indices: expected integers, found float64 (16,)"),
        (FLAT.astype(object), "indices: expected integers, found object (16,)"),
        (FLAT > 3, "indices: expected integers, found bool (16,)"),
        (
            FLAT + np.int64(2**33),
            f"indices: expected 0 to {2**31 - 1}, found {2**33} to {2**33 + 15}",
        ),
        (np.ma.masked_array(FLAT, FLAT < 2), "indices: expected no masked numbers, found 2"),
    ],
)
def test_nf_11_lists_that_are_no_rows_are_refused(indices, message):
    refused(message, trained, FederatedData(ARRAYS, indices, OFFSETS))


@pytest.mark.parametrize("build", [FederatedData, FederatedData.from_offsets])
def test_nf_11_rows_that_do_not_exist_are_refused_however_the_data_were_built(build):
    """A compiled program would take the last row for them."""
    message = "indices of client 2: expected rows 0 to 15, found 16"
    refused(message, lambda: trained(build(ARRAYS, np.r_[FLAT[:-1], 16], OFFSETS)))
    message = "offsets: expected at least 2, ascending from 0 to 16, ..., found 4 numbers, ..."
    for offsets in ([0, 12, 5, 16], [0, 5, 12, 17], [1, 5, 12, 16]):
        with pytest.raises(ValueError) as caught:
            trained(build(ARRAYS, FLAT, np.array(offsets)))
        matches(message, str(caught.value))


def test_nf_11_a_state_to_go_on_from_may_be_of_any_byte_order():
    assert gone_on(lambda a: np.asarray(a).astype(">f4")) == gone_on(lambda a: a)


@pytest.mark.parametrize("scores", [["0.5"], [0.5j], [None], 0.5])
def test_nf_11_scores_that_are_no_numbers_are_refused(scores):
    refused("scores: expected numbers [clients], found ...", ccfl.fairness, scores)


def test_nf_11_rows_that_are_not_finite_are_counted_in_a_warning():
    arrays = {"x": INFINITE, "y": Y}
    said = "array 'x': expected finite numbers, found 2 rows with nan or inf, the first is row 3"
    for door in ("from_indices", "from_offsets", "evaluate", "evaluate_trials"):
        with pytest.warns(UserWarning) as caught:
            DOORS[door](arrays)
        assert [str(one.message) for one in caught] == [said]
        assert caught[0].filename == __file__  # of the user's line


MASKED = {
    "client": lambda: trained(data_of(ARRAYS), masked(SCHEDULE, "client")),
    "present": lambda: SCHEDULE.planned() and masked(SCHEDULE, "present").planned(),
    "work": lambda: masked(SCHEDULE, "work").stats(3),
    "staleness": lambda: ccfl.stream_rounds(masked(SCHEDULE, "staleness"), data_of(ARRAYS), 4000),
    "steps": lambda: SCHEDULE.stats(3, hidden(SCHEDULE.work)),
    "labels": lambda: ccfl.partition_iid(hidden(LABELS), 3, 0),
    "client_ids": lambda: ccfl.partition_natural(hidden(LABELS)),
    "labels of y": lambda: check_labels(hidden(LABELS), 3, "y"),
    "clients": lambda: data_of(ARRAYS).only(hidden(np.arange(3))),
    "indices of client 0": lambda: FederatedData.from_indices(ARRAYS, [hidden(FLAT)]),
    "scores": lambda: ccfl.fairness(hidden(SECONDS)),
    "attackers": lambda: ccfl.systems.sign_flip(hidden([True] * 3)),
    "state.params.b": lambda: gone_on(hidden),
    "params.w": lambda: ccfl.evaluate(TASK, {**FIRST, "w": hidden(FIRST["w"])}, ARRAYS),
    "step": lambda: speed.Devices(hidden(SECONDS), SECONDS, SECONDS).check(),
    "seconds": lambda: speed.slowness(hidden(SECONDS)),
    "p": lambda: availability.bernoulli(20, hidden(SECONDS / 2), 1.0),
    "period": lambda: availability.windows(LABELS[:3], [0] * 3, [1] * 3, hidden([4.0] * 3)),
    "available in round 0": lambda: ccfl.random_schedule(
        0, 1, 3, 1, available=[hidden([True] * 3)]
    ),
}  # fmt: skip


def hidden(array):
    """The array with its first number masked."""
    array = np.array(array)
    return np.ma.masked_array(array, np.arange(array.size).reshape(array.shape) == 0)


def masked(schedule, name):
    return schedule.replace(**{name: hidden(getattr(schedule, name))})


@pytest.mark.parametrize("name", MASKED)
def test_nf_11_masked_numbers_never_come_back(name):
    refused(f"{name}: expected no masked numbers, found 1", MASKED[name])
