"""Evaluation where the model is on several devices: they share it, with one device's numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import ccfl_jax as ccfl

PARAMS = {"x": jnp.float32(0.3)}


def everywhere(tree, devices):
    return jax.device_put(tree, NamedSharding(problems.mesh_of(devices), PartitionSpec()))


def counting_task(calls):
    """The mean of a column, by a plain sum; `calls` has a batch's first row each time."""

    def metrics(params, batch, mask):
        jax.debug.callback(lambda row: calls.append(int(row)), batch["row"][0])
        return {"loss": ((batch["x"] * params["x"] * mask).sum(), mask.sum())}

    return ccfl.Task(init=lambda key: PARAMS, loss=lambda *_: 0.0, metrics=metrics)


@pytest.mark.parametrize(("rows", "devices"), [(40, 4), (37, 2), (3, 4)])
@pytest.mark.parametrize("on_devices", [True, False])
def test_devices_share_the_batches(rows, devices, on_devices):
    calls = []
    task, batch_size = counting_task(calls), 5
    x = np.random.default_rng([rows]).normal(size=rows).astype(np.float32)
    arrays = {"x": x, "row": np.arange(rows, dtype=np.int32)}
    placed = everywhere(arrays, devices) if on_devices else arrays
    found = ccfl.evaluate(task, everywhere(PARAMS, devices), placed, batch_size)
    jax.effects_barrier()
    held = rows if on_devices else 1 << (rows - 1).bit_length()  # a power of two is for few rows
    together = min(batch_size, -(-held // devices))
    most = -(-held // together)
    assert len(calls) == -(-most // devices) * devices  # each batch once, but for the uneven rest
    expected = 0.3 * np.mean(x, dtype=np.float64)
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    alone = ccfl.evaluate(task, PARAMS, arrays, together)
    assert found == alone  # the same batches, added in one order


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("own", [None, lambda params, memory: memory])
def test_devices_share_the_clients(devices, own):
    sizes, calls = (6, 4, 0, 9, 15), []
    task, total = counting_task(calls), sum(sizes)
    rng = np.random.default_rng([devices])
    arrays = {"x": rng.normal(size=total).astype(np.float32), "row": np.arange(total)}
    data = ccfl.FederatedData.from_offsets(arrays, np.arange(total), np.cumsum([0, *sizes]))
    memories = {"x": rng.normal(size=5).astype(np.float32)} if own else ()
    run = {"own": own, "batch_size": 4}
    alone = ccfl.evaluate_clients(task, PARAMS, data, memories=memories, **run)
    jax.effects_barrier()
    once = len(calls)
    placed = everywhere((PARAMS, data, memories), devices)
    spread = ccfl.evaluate_clients(task, placed[0], placed[1], memories=placed[2], **run)
    jax.effects_barrier()
    np.testing.assert_array_equal(spread["loss"], alone["loss"])
    assert once == 2 + 1 + 0 + 3 + 4
    # Five clients are six or eight shares, the last client again.
    assert len(calls) == once + once + 4 * (-len(sizes) % devices)
