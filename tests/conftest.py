"""What every test runs under."""

import functools
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from hypothesis import settings
from jax._src import compiler

OLDER_EMITTERS = "xla_cpu_use_fusion_emitters"
get_compile_options = compiler.get_compile_options

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 4)  # for the tests of meshes; all others use the first
settings.register_profile("ccfl", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("ccfl")


def pytest_configure(config):
    """A program is compiled once: both workers, the commands they start, and the next session find
    it under .pytest_cache (`--cache-clear` empties it)."""
    kept = {
        "jax_compilation_cache_dir": str(config.rootpath / ".pytest_cache/d/programs"),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in kept.items():
        os.environ[name.upper()] = str(value)
        jax.config.update(name, value)


@pytest.fixture(scope="module", autouse=True)
def programs_let_go():
    """A worker keeps no program past its file: each one holds memory maps, and a process may have
    only 65,530 of them (Linux's vm.max_map_count); past that, compiling aborts."""
    yield
    jax.clear_caches()


def with_older_emitters(*args, env_options_overrides=None, **kwargs):
    """JAX's options of a program, without XLA's newer emitters of a CPU's loops."""
    options = {OLDER_EMITTERS: False, **(env_options_overrides or {})}
    return get_compile_options(*args, env_options_overrides=options, **kwargs)


@functools.cache
def emitters_can_be_named():
    """Whether this XLA knows the option: other versions may not."""
    try:
        jax.jit(lambda: 0, compiler_options={OLDER_EMITTERS: False})()
    except jax.errors.JaxRuntimeError:
        return False
    return True


@pytest.fixture(scope="module")
def quickly_compiled():
    """The compiler optimises little, and makes a CPU's loops without its newer emitters, in a
    quarter of its time; numbers keep their tolerances. It holds for processes that a test starts,
    too."""
    with pytest.MonkeyPatch.context() as patch:
        if emitters_can_be_named():
            # JAX has no public way to set an option of all programs once XLA has started.
            patch.setattr(compiler, "get_compile_options", with_older_emitters)
            flags = f"{os.environ.get('XLA_FLAGS', '')} --{OLDER_EMITTERS}=false"
            patch.setenv("XLA_FLAGS", flags.strip())
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        jax.config.update("jax_disable_most_optimizations", True)
        yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def x64():
    """The test runs with 64-bit JAX."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def undrawn():
    """Runs draw no curves, which take longer than their rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.figures.curves.draw_curves", lambda *args: None)
        yield


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of six rounds with an evaluation every second one: its folder and rows."""
    from small_runs import config_of

    from experiments.training import run

    out = f"--out_dir={tmp_path_factory.mktemp('runs') / 'straight'}"
    return run.run(config_of("--rounds=6", "--eval_every=2", out))


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """The same run, prepared only."""
    from small_runs import config_of

    from experiments.training import run_setup

    return run_setup.prepare(config_of(f"--out_dir={tmp_path_factory.mktemp('runs') / 'ready'}"))
