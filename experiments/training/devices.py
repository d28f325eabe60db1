"""Processes and devices of a run, and the cache of programs compiled for them."""

import contextlib
import dataclasses
import hashlib
import importlib.util
import os
import platform
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ccfl_jax.data.arrays import aligned

from ..config.run_flags import Config

# A process without a sign of life for so long is dead, and the others end with an error.
_HEARTBEAT_SECONDS = 20
# Splitting each device's operations over all cores takes a tenth longer.
_ON_ONE_CORE = "--xla_cpu_multi_thread_eigen=false"
# LLVM unrolls loops over 16 numbers before it looks for vectors, and then finds none: CNNs and
# ResNets take a tenth longer, logistic regression a fifth.
_VECTORS = "--xla_backend_extra_options=xla_cpu_disable_loop_unrolling"


def start(config: Config) -> Mesh:
    """Joins the other processes, if there are any, and returns the devices to spread clients over.

    Raises:
        ValueError: if there are fewer devices than `config.devices`.
        RuntimeError: if the other processes do not connect within a minute.
    """
    _keep_compiled(config.compilation_cache)
    make_host_devices(config.devices)
    if config.coordinator is not None:
        jax.distributed.initialize(
            None if config.coordinator == "auto" else config.coordinator,
            config.num_processes,
            config.process_id,
            initialization_timeout=60,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=60,
        )
    return mesh(config.devices)


def start_worker(config: Config) -> Mesh:
    """`config.devices` CPU devices of a process beside others, which have the other cores."""
    jax.config.update("jax_platforms", "cpu")
    os.environ.setdefault("PJRT_NPROC", str(config.devices))  # threads, else one for every core
    _set_flag(_ON_ONE_CORE)
    return start(config)


def start_driver(config: Config) -> Mesh:
    """The one CPU device of a process whose workers train."""
    jax.config.update("jax_platforms", "cpu")
    return start(dataclasses.replace(config, devices=1))


def make_host_devices(count: int | None) -> None:
    """Sets JAX's number of devices on a CPU, by default one per core that the process may use.

    Where `count` is None the user's JAX_NUM_CPU_DEVICES or XLA_FLAGS decide. Without an accelerator
    XLA's programs are made for a CPU's vectors too.
    """
    if not _may_have_accelerator():
        _set_flag(_VECTORS)
    given = os.environ.get("XLA_FLAGS", "")
    if count is None and "--xla_force_host_platform_device_count" in given:
        return
    default = 1 if "JAX_NUM_CPU_DEVICES" in os.environ else cores()
    wanted = max(count or default, jax.config.jax_num_cpu_devices)
    # Fails once JAX has started, as in a test: it keeps its devices then.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", wanted)
        if wanted > 1:
            _set_flag(_ON_ONE_CORE)


def mesh(count: int | None) -> Mesh:
    """The first `count` devices of every process, by default all, in one axis.

    Raises:
        ValueError: if there are fewer, or none of the platform that JAX_PLATFORMS names.
        RuntimeError: if JAX knows no such platform, or cannot start it.
    """
    try:
        found = jax.devices()
    except AssertionError:  # what JAX raises for CUDA without a GPU
        raise ValueError(
            "JAX_PLATFORMS: expected a platform that has a device here, as cpu, found "
            f"{jax.config.jax_platforms!r}"
        ) from None
    if count is not None and count > jax.local_device_count():
        raise ValueError(
            f"--devices: expected 1 to {jax.local_device_count()}, the {found[0].platform} devices "
            f"here, found {count}"
        )
    by_process = [d for d in found if _place(d) < (count or len(found))]
    # Not explicit: every operation of the server would state its sharding, which XLA then compiles.
    axes = ("clients",), (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((len(by_process),), *axes, devices=by_process)


def share(samples: Any, mesh: Mesh) -> Any:
    """`put` of NumPy arrays that are never donated; a CPU's devices read one copy together."""
    if mesh.devices.flat[0].platform == "cpu":
        samples = jax.tree.map(aligned, samples)
    return put(samples, mesh)


def put(tree: Any, mesh: Mesh) -> Any:
    """The tree on all devices of `mesh`, a whole copy on each."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    if jax.process_count() == 1:
        return jax.device_put(tree, everywhere)

    def shared(leaf: Any) -> jax.Array:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(
                shared(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf)
            )
        own = np.asarray(leaf)  # the same in every process, by the seed
        return jax.make_array_from_callback(own.shape, everywhere, lambda index: own[index])

    return jax.tree.map(shared, tree)


def compiled_quickly(function: Callable) -> Callable:
    """`jax.jit` of what runs once: on a CPU compiled in 36 to 39 % of the time, for slower code.

    Its numbers are the same. At XLA's level 0 they are not, as products are not fused with sums.
    """
    options = {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else None
    return jax.jit(function, compiler_options=options)


def _may_have_accelerator() -> bool:
    """Whether JAX has a plugin for another platform, and may use it."""
    plugins = entry_points(group="jax_plugins") or importlib.util.find_spec("libtpu")
    return bool(plugins) and jax.config.jax_platforms != "cpu"


def _set_flag(flag: str) -> None:
    """Gives XLA a flag, before JAX has started."""
    given = os.environ.get("XLA_FLAGS", "")
    # Before the user's flags, so that those win; once, as the cache finds programs by all flags.
    if flag not in given.split():
        os.environ["XLA_FLAGS"] = f"{flag} {given}".strip()


def cores() -> int:
    """The cores that this process may use: those allotted to a job, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _place(device: jax.Device) -> int:
    """The number of a device among those of its own process."""
    own = [d.id for d in jax.devices() if d.process_index == device.process_index]
    return sorted(own).index(device.id)


def _keep_compiled(folder: str) -> None:
    """Keeps compiled programs in `folder`, for the next process with the same programs.

    The user's JAX_COMPILATION_CACHE_DIR takes the place of the default, and of "off".
    """
    is_default = folder == Config.compilation_cache
    if folder != "off" and not (is_default and "JAX_COMPILATION_CACHE_DIR" in os.environ):
        # A program made for another processor may not run on this one.
        folder = Path(folder).expanduser() / f"{platform.machine()}-{_processor()}"
        jax.config.update("jax_compilation_cache_dir", str(folder))
        # Small ones too: a run starts with a hundred, which take as long as the round together.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _processor() -> str:
    """Ten digits for the processor's instruction set, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(features.encode()).hexdigest()[:10]
