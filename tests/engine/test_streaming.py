"""Streaming: cutting a schedule, one piece ahead, the same results, bounded memory."""

import threading
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import problems
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from problems import assert_trees_close, assert_trees_equal, make_schedule
from refusal import refused

import ccfl_jax as ccfl
from ccfl_jax.engine import streaming

SIZES = (6, 4, 9, 15, 0, 1, 12, 7)
ROW_BYTES = 4 + 4  # a value and the row number
FIXED = 4 * (len(SIZES) + 1)  # offsets


def on_host():
    rng = np.random.default_rng(0)
    values = {"v": rng.normal(size=sum(SIZES)).astype(np.float32)}
    rows = rng.permutation(sum(SIZES))
    return ccfl.FederatedData.from_offsets(values, rows, np.cumsum([0, *SIZES]))


def uneven_schedule(rounds=20):
    """Stale models, uneven work and none, a client twice in a round, absent slots."""
    schedule = ccfl.random_schedule(0, rounds, len(SIZES), 4, max_delay=3)
    rng = np.random.default_rng(0)
    schedule.client[::3, 1] = schedule.client[::3, 0]
    schedule.work[rng.random(schedule.work.shape) < 0.2] = 0
    schedule.present[rng.random(schedule.work.shape) < 0.2] = False
    schedule.present[5] = False
    return schedule


def memory_for(rows):
    return 2 * (FIXED + rows * ROW_BYTES)


def setting(history_length=4, **how):
    task = problems.points_task()
    simulation = ccfl.simulation(task, ccfl.cc_fedavg(), optax.sgd(0.1), batch_size=4, **how)
    round_fn, traces = problems.counting(simulation.round)
    return round_fn, simulation.init(jax.random.key(0), history_length), traces


def run_streamed(round_fn, state, schedule, put=jax.device_put):
    """The last state and the infos of a run of at least four pieces."""
    pieces = ccfl.stream_rounds(schedule, on_host(), memory_for(40), put)
    states, infos = problems.run_pieces(round_fn, state, pieces)
    assert len(states) > 4
    return states[-1], infos


def workers():
    return [t for t in threading.enumerate() if t.name.startswith("stream_rounds")]


@pytest.fixture(scope="module")
def whole():
    """The unstreamed run on one device."""
    round_fn, state, _ = setting()
    return ccfl.run_rounds(round_fn, state, uneven_schedule(), on_host())


def test_a_streamed_run_is_the_run_bit_for_bit_in_one_program(whole):
    round_fn, state, traces = setting()
    assert_trees_equal(run_streamed(round_fn, state, uneven_schedule()), whole)
    assert len(traces) == 1


def test_a_planned_run_with_lanes_and_work_in_steps_is_the_rings_bit_for_bit():
    """A history of the slots that the whole schedule needs; the pieces are cut from its plan.

    Lanes without work look at rows too, and must not show.
    """
    schedule, how = uneven_schedule(), {"work_unit": "steps", "normalise": "epochs", "lanes": 3}
    round_fn, state, _ = setting(**how)
    ring, ring_info = ccfl.run_rounds(round_fn, state, schedule, on_host())
    _, state, _ = setting(schedule.history_slots())
    end, info = run_streamed(round_fn, state, schedule.planned())
    assert_trees_equal((end._replace(history=()), info), (ring._replace(history=()), ring_info))


@pytest.mark.slow
def test_on_several_devices_to_rounding(whole):
    mesh = problems.mesh_of(4)
    round_fn, state, _ = setting(mesh=mesh)
    put = partial(jax.device_put, device=NamedSharding(mesh, PartitionSpec()))
    assert_trees_close(run_streamed(round_fn, put(state), uneven_schedule(), put), whole)


def test_64_bit_numbers_reach_the_device(x64):
    data = on_host()
    data.arrays["v"] = data.arrays["v"] / np.float64(3)
    _, samples = next(ccfl.stream_rounds(make_schedule([[0]]), data, 10**6))
    np.testing.assert_array_equal(samples.client(0)["v"], data.client(0)["v"])


THREE = st.lists(st.integers(0, 7), min_size=3, max_size=3)


@given(st.lists(THREE, min_size=1, max_size=12), st.integers(0, 60))
def test_pieces_are_as_long_as_they_fit(clients, slack):
    """Against sets: a piece fits, holds who is asked for, and one more round would not fit."""
    schedule = make_schedule(clients, present=np.arange(3) < 2)
    rows = [{c: SIZES[c] for c in row[:2]} for row in clients]
    room = max(1, slack + max(sum(row.values()) for row in rows))

    def total(start, stop):
        return sum({c: n for row in rows[start:stop] for c, n in row.items()}.values())

    pieces = streaming.cut(schedule, on_host(), memory_for(room))
    starts = pieces.starts
    assert (starts[0], starts[-1]) == (0, len(clients)) and starts == sorted(set(starts))
    spans = list(pairwise(starts))
    assert all(total(*span) <= room for span in spans)
    assert all(total(start, stop + 1) > room for start, stop in spans[:-1])
    assert pieces.rows == max(1, *(total(*span) for span in spans))
    got = list(ccfl.stream_rounds(schedule, on_host(), memory_for(room)))
    for (start, stop), (piece, samples) in zip(spans, got, strict=True):
        np.testing.assert_array_equal(piece.client, schedule.client[start:stop])
        held = {c for row in rows[start:stop] for c in row}
        sizes = [n if c in held else 0 for c, n in enumerate(SIZES)]
        np.testing.assert_array_equal(samples.sizes, sizes)
        assert sum(leaf.nbytes for leaf in jax.tree.leaves(samples)) == pieces.nbytes


def test_no_piece_has_more_rows_than_int32_counts():
    """Three clients of 1.2e9 rows: two of them are more than 2**31 - 1."""
    indices, offsets = np.broadcast_to(np.int32(0), 3_600_000_000), np.arange(4) * 1_200_000_000
    data = ccfl.FederatedData({"x": np.zeros(1, np.uint8)}, indices, offsets)
    pieces = streaming.cut(make_schedule([[0], [0], [1], [2]]), data, 10**12)
    assert pieces.starts == [0, 2, 3, 4] and pieces.rows == 1_200_000_000


def test_one_piece_is_sent_ahead_and_no_more():
    schedule = make_schedule([[k] for k in (2, 3, 6, 2, 3)])
    for taken in range(6):
        sent = []
        pieces = ccfl.stream_rounds(schedule, on_host(), memory_for(15), put=sent.append)
        for _ in range(taken):
            next(pieces)
        pieces.close()  # waits for what has been begun
        assert len(sent) == (min(taken + 1, 5) if taken else 0)
        assert not workers()


def test_the_next_piece_is_sent_while_the_caller_has_this_one():
    schedule, sent, threads = make_schedule([[0], [3]]), threading.Semaphore(0), []

    def put(piece):
        threads.append(threading.current_thread())
        sent.release()
        return piece

    pieces = ccfl.stream_rounds(schedule, on_host(), memory_for(15), put=put)
    next(pieces)
    assert sent.acquire(timeout=60) and sent.acquire(timeout=60)
    assert len({*threads}) == 1 and threads[0] is not threading.main_thread()
    assert len(list(pieces)) == 1 and not workers()


def test_an_error_in_the_thread_reaches_the_caller():
    schedule, calls = make_schedule([[0], [3], [2]]), []

    def put(piece):
        calls.append(1)
        if len(calls) == 2:
            raise OSError("the disk is gone")
        return piece

    pieces = ccfl.stream_rounds(schedule, on_host(), memory_for(15), put=put)
    next(pieces)
    refused("the disk is gone", next, pieces, kind=OSError)
    assert len(calls) == 2 and not workers()


def test_no_rounds_are_no_pieces():
    empty = make_schedule([[0]]).rounds(0, 0)
    assert not list(ccfl.stream_rounds(empty, on_host(), memory_for(1)))


@pytest.mark.parametrize(
    ("schedule", "memory", "message"),
    [  # the first: 10, 15, 27 and 21 rows
        ([[0, 1], [3, 3], [3, 6], [2, 6]], memory_for(27) - 1,
         f"memory: expected at least {memory_for(27)} (0.0006 MB), twice the "
         f"{memory_for(27) // 2} that round 2 takes, found {memory_for(27) - 1} bytes"),
        ([[4]], 0, f"memory: expected at least {memory_for(1)} ..., found 0 bytes"),
        ([[0]], 1e9, "memory: expected an integer, in bytes, found 1000000000.0"),
        ([[0]], True, "memory: expected an integer, in bytes, found True"),
        ([[8]], 10**9, "schedule: expected clients 0 to 7, found 8"),
        ([[-1]], 10**9, "client: expected 0 to 2147483647, found -1 to -1"),
    ],
)  # fmt: skip
def test_refused_at_once(schedule, memory, message):
    """Not even the first piece is asked for."""
    refused(message, ccfl.stream_rounds, make_schedule(schedule), on_host(), memory)


def test_a_file_larger_than_memory_is_read_only_where_it_is_needed(tmp_path):
    """A sparse file of a terabyte: reading it whole would neither fit nor end."""
    rows, width = 2**30, 256  # float32
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=(rows, width))
    y = np.memmap(tmp_path / "y", np.int64, "w+", shape=(rows,))
    lists = [[5, 2**29], [7], [rows - 1, 11, 12]]
    for client, own in enumerate(lists):
        x[own], y[own] = np.float32(client + 1), client + 1
    rows_of, offsets = np.concatenate(lists), np.array([0, 2, 3, 6])
    data = ccfl.FederatedData.from_offsets({"x": x, "y": y}, rows_of, offsets)
    schedule, row_bytes = make_schedule([[0, 1], [2, 2], [1, 2]]), 4 * width + 4 + 4
    pieces = list(ccfl.stream_rounds(schedule, data, 2 * (4 * 4 + 4 * row_bytes)))
    assert [len(piece.client) for piece, _ in pieces] == [1, 2]
    for piece, samples in pieces:
        assert samples.arrays["x"].shape == (4, width) and samples.arrays["y"].dtype == jnp.int32
        for client in np.unique(piece.client):
            own, expected = samples.client(client), np.full(len(lists[client]), client + 1)
            np.testing.assert_array_equal(own["y"], expected)
            np.testing.assert_array_equal(own["x"], np.tile(expected[:, None], width))
