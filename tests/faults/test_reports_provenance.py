"""What a result depends on beside its settings: compared whenever work goes on or is compared."""

import contextlib
import json
import shutil

import flax
import jax
import numpy as np
import pytest
from data_files import idx_bytes
from refusal import ended, matches
from small_runs import SMALL, config_of, contents, copied, line, main, rows_of

import ccfl_jax as ccfl
from ccfl_jax.runs import provenance
from experiments import plot, reproduce, sweep, table, train
from experiments.training import parts

pytestmark = pytest.mark.usefixtures("undrawn", "quickly_compiled")

FOUR = ["--rounds=4", "--eval_every=4"]
SAME = "expected results of one provenance (or --accept_changed=NAME), found "
SWITCHES = {
    "threefry_partitionable": (True, False),
    "random_seed_offset": (0, 1),
    "enable_x64": (False, True),
    "default_matmul_precision": (None, "bfloat16"),
}


@contextlib.contextmanager
def switched(name):
    """As if the process had been started with the other value of JAX's switch."""
    jax.config.update(f"jax_{name}", SWITCHES[name][1])
    try:
        yield
    finally:
        jax.config.update(f"jax_{name}", SWITCHES[name][0])


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "base"
    assert main(*FOUR, f"--out_dir={folder}") == 0
    return folder


@pytest.fixture
def folder(base, tmp_path):
    return copied(base, tmp_path / "a")


@pytest.fixture
def refuses(capsys):
    """`refuses(place, found, main, *argv)`: refused in one line, with what differs alone."""

    def check(place, found, main, *argv):
        said = ended(2, capsys, main, *argv)
        matches(f"{argv[0]}: {place}: {SAME}{found}\n", said.err)

    return check


def resume(folder, *args):
    return train.main, *line(
        "--rounds=6", "--eval_every=4", "--resume", f"--out_dir={folder}", *args
    )


def edit(folder, **values):
    path = folder / provenance.PROVENANCE
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | values))


@pytest.mark.parametrize("name", SWITCHES)
def test_nf_01_a_run_is_not_resumed_under_another_switch(folder, refuses, name):
    before = contents(folder)
    with switched(name):
        refuses(folder / "provenance.json", "{} {} -> {}".format(name, *SWITCHES[name]),
                *resume(folder))  # fmt: skip
    assert contents(folder) == before


def test_nf_01_switches_that_are_recorded_change_what_is_drawn():
    """Those of the generator; the same key and shape give other numbers."""
    draw = jax.random.normal
    plain = draw(jax.random.key(0), (3, 5))
    for name in ("threefry_partitionable", "random_seed_offset"):
        with switched(name):
            assert not np.array_equal(plain, draw(jax.random.key(0), (3, 5)))


def test_nf_01_flax_changes_what_is_drawn_too(folder, refuses):
    """Its keys of first models and of dropout hang on a switch, and on its version as optax's."""
    name, init = "flax_fix_rng_separator", ccfl.models.MLP().init
    key, x = jax.random.key(0), np.zeros((1, 4))
    before = init(key, x)
    edit(folder, flax="0.0.1", optax="0.0")
    flax.config.update(name, True)
    try:
        found = "flax 0.0.1 -> ..., flax_fix_rng_separator False -> True, optax 0.0 -> ..."
        refuses(folder / "provenance.json", found, *resume(folder))
        after = init(key, x)
    finally:
        flax.config.update(name, False)
    kernels = [jax.tree.leaves(own)[1] for own in (before, after)]
    assert not np.array_equal(*kernels)


def test_nf_01_another_version_is_refused_until_it_is_accepted(folder, refuses, capsys):
    edit(folder, jax="0.0.1", ccfl_jax="0.0")
    place, found = folder / "provenance.json", f"jax 0.0.1 -> {jax.__version__}"
    refuses(place, f"ccfl_jax 0.0 -> ..., {found}", *resume(folder))
    refuses(place, found, *resume(folder, "--accept_changed=ccfl_jax"))
    said = ended(2, capsys, *resume(folder, "--accept_changed=jaxx"))
    matches("train: --accept_changed: expected some of ..., jax, ..., found jaxx\n", said.err)
    assert json.loads(place.read_text())["jax"] == "0.0.1"
    ended(0, capsys, *resume(folder, "--accept_changed=jax,ccfl_jax"))
    assert json.loads(place.read_text())["jax"] == jax.__version__
    assert rows_of(folder)[-1]["round"] == 6


def test_nf_01_a_refusal_after_the_comparison_accepts_nothing(folder, capsys):
    """Six rounds are done, and five are asked for."""
    edit(folder, jax="0.0.1")
    before = contents(folder)
    args = ["--accept_changed=jax", "--rounds=3"]
    assert "--rounds: expected at least 4" in ended(2, capsys, *resume(folder, *args)).err
    assert contents(folder) == before


def test_nf_01_folders_of_before_are_resumed(folder, base):
    """Without a provenance there is nothing to compare; there is one after."""
    (folder / "provenance.json").unlink()
    call, *argv = resume(folder)
    assert call(argv) == 0
    assert (folder / "provenance.json").read_bytes() == (base / "provenance.json").read_bytes()


@pytest.mark.parametrize("text", ["", "[]", '{"jax": 1}', '{"jax": NaN}'])
def test_nf_01_a_file_that_is_no_provenance_is_refused_by_name(folder, capsys, text):
    (folder / "provenance.json").write_text(text)
    said = ended(2, capsys, *resume(folder))
    matches(f"train: {folder}/provenance.json: expected ..., found ...\n", said.err)


def sweep_args(folder, *args):
    own = ["--rounds=2", "--devices=1", "--compilation_cache=off", "--server_lr=0.1"]
    return "sweep", *SMALL, *own, "--vary=seed=0,1", f"--out_dir={folder}", *args


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweeps") / "a"
    assert sweep.main([*sweep_args(folder)]) == 0
    return folder


def test_nf_01_a_sweep_goes_on_under_its_own_provenance(swept, tmp_path, refuses):
    """It names the clients and the schedule of each seed; one changed seed is enough."""
    names = [*json.loads((swept / "provenance.json").read_text())]
    of_seeds = ["clients[seed=0]", "schedule[seed=0]", "clients[seed=1]", "schedule[seed=1]"]
    assert names[-6:] == ["train[digits]", "test[digits]", *of_seeds]
    folder = copied(swept, tmp_path / "a")
    (folder / "trials" / "seed=1.json").unlink()
    for changed in ("jax", "train[digits]", "clients[seed=1]", "schedule[seed=0]"):
        shutil.copy(swept / "provenance.json", folder)
        edit(folder, **{changed: "other"})
        refuses(folder / "provenance.json", f"{changed} other -> ...", sweep.main,
                *sweep_args(folder))  # fmt: skip
    assert not (folder / "trials" / "seed=1.json").exists()
    assert sweep.main([*sweep_args(folder, "--accept_changed=schedule")]) == 0


def test_nf_01_a_reproduction_goes_on_under_its_own_provenance(tmp_path, refuses):
    grid = tmp_path / "a" / "grid"
    grid.mkdir(parents=True)
    edit(grid, jax="0.0.1")
    args = ["fig2_fmnist", "--dataset=digits", "--model=logistic", "--rounds=2"]
    args += ["--devices=1", "--compilation_cache=off"]
    refuses(grid / "provenance.json", f"jax 0.0.1 -> {jax.__version__}", reproduce.main,
            "reproduce", *args, f"--out_dir={tmp_path / 'a'}")  # fmt: skip


@pytest.mark.parametrize("main", [plot.main, table.main])
def test_nf_01_results_of_two_versions_are_not_put_beside_each_other(
    base, folder, tmp_path, refuses, capsys, main
):
    name = main.__module__.rpartition(".")[2]
    own = [name, f"--out={tmp_path / 'x.png'}"] if main is plot.main else [name]
    ended(0, capsys, main, *own, base, folder)
    edit(folder, jax="0.0.1", **{"train[digits]": "other", "clients[seed=0]": "any"})
    found = f"jax {jax.__version__} -> 0.0.1"
    refuses(folder, f"{found}, train[digits] ... -> other", main, *own, base, folder)
    refuses(folder, found, main, *own, base, folder, "--accept_changed=train")
    ended(0, capsys, main, *own, base, folder, "--accept_changed=train,jax")
    said = ended(2, capsys, main, *own, base, base, "--accept_changed=jaxx")
    matches(f"{name}: --accept_changed: expected some of ..., found jaxx\n", said.err)
    ended(0, capsys, main, *own, folder)


def write_idx(folder, seed=0, rows=40):
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    for part, count in (("train", rows), ("t10k", 10)):
        images, labels = rng.integers(0, 256, (count, 28, 28)), np.arange(count) % 10
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    return folder


def on_files(data, folder, *args):
    own = ["--dataset=fashion_mnist", "--num_clients=3", "--partition=iid", f"--data_dir={data}"]
    return train.main, *line(*own, "--eval_every=4", f"--out_dir={folder}", *args)


def test_nf_03_a_data_set_that_was_replaced_is_another(tmp_path, refuses, capsys):
    """Other images; another number of rows, so other clients too; and moved, the same bytes."""
    data, folder = write_idx(tmp_path / "data"), tmp_path / "run"
    ended(0, capsys, *on_files(data, folder, "--rounds=4"))
    more = "--rounds=6", "--resume"
    other, found = "test[fashion_mnist] ...", "train[fashion_mnist] ... -> ..."
    write_idx(data, seed=1)
    refuses(folder / "provenance.json", f"{other} -> ..., {found}", *on_files(data, folder, *more))
    write_idx(data, seed=0, rows=50)
    refuses(folder / "provenance.json", f"clients[seed=0] ... -> ..., {other} -> ..., {found}",
            *on_files(data, folder, *more))  # fmt: skip
    ended(0, capsys, *on_files(write_idx(tmp_path / "moved"), folder, *more))
    assert rows_of(folder)[-1]["round"] == 6


def test_nf_03_a_schedule_file_that_was_replaced_is_another(tmp_path, capsys):
    """In a round that is done; the rounds still to come may be planned anew."""
    file, folder = tmp_path / "s.npz", tmp_path / "run"
    made = ccfl.random_schedule(0, 8, 12, buffer_size=3, max_delay=2, local_work=1)
    args = [f"--schedule_file={file}", *FOUR[1:], f"--out_dir={folder}"]
    made.save(file)
    assert main("--rounds=4", *args) == 0
    for row in (3, 6):
        other = made.replace(work=made.work.copy())
        other.work[row] = 3 - other.work[row]  # 1 <-> 2
        other.save(file)
        said = ended(
            0 if row == 6 else 2, capsys, train.main, *line("--rounds=8", "--resume", *args)
        )
        assert ("schedule.npz: expected the 4 rounds done" in said.err) == (row == 3)
    assert rows_of(folder)[-1]["round"] == 8


def test_nf_03_a_digest_is_of_names_dtypes_shapes_and_numbers():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    others = [
        {"a": array + 1}, {"b": array}, {"a": array.astype(np.int64)}, {"a": array.T},
        {"a": array.view(np.float32)}, {"a": array.reshape(-1)}, {"a": array, "b": array[:0]}, {},
    ]  # fmt: skip
    found = [provenance.digest(one) for one in [{"a": array}, *others]]
    assert len({*found}) == 9
    assert provenance.digest({"a": np.asfortranarray(array)}) == found[0]
    pair = {"a": array, "b": np.float32(1)}
    assert provenance.digest(pair) == provenance.digest(dict([*pair.items()][::-1]))


def test_nf_03_clients_drawn_from_stackoverflow_are_named_by_what_draws_them():
    """Runs of 10 and of 20 of its clients may be put beside each other."""
    flags = ["--dataset=stackoverflow", "--model=tags", "--partition=natural", "--data_dir=d"]
    sources = [parts.source(config_of(*flags, f"--num_clients={n}")) for n in (10, 20)]
    part = {"x": np.zeros(1)}
    assert [next(iter(parts.data_digests(source, part, part))) for source in sources] == [
        f"train[stackoverflow,{n},0,500,1,150]" for n in (10, 20)
    ]


def test_a_run_and_a_sweep_of_one_data_set_can_be_put_beside_each_other(tmp_path):
    """The files of Synthetic name each row's client, too; both record the same digests of them."""
    words = [*SMALL, "--dataset=synthetic", "--partition=natural", "--num_clients=100"]
    words += ["--noprogress", "--rounds=1"]
    alone, grid = tmp_path / "run", tmp_path / "sweep"
    assert train.main(["train", *words, "--server_lr=0.1", f"--out_dir={alone}"]) == 0
    assert sweep.main(["sweep", *words, "--vary=server_lr=0.1", f"--out_dir={grid}"]) == 0
    found, expected = provenance.read(alone), provenance.read(grid)
    assert "test[synthetic]" in found
    assert found.items() <= expected.items()
    assert table.main(["table", str(alone), str(grid)]) == 0
