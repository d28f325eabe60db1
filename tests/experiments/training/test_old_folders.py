"""Folders of runs and of sweeps in the form of the first versions resume, and are listed."""

import json
import shutil

import jax
import pytest
from small_runs import SMALL, main, rows_of, without_clocks

from ccfl_jax.runs import checkpoints, metrics, run_config
from experiments import sweep, table
from experiments.sweeps import results, trial_checkpoints
from experiments.training import journal

OFTEN = ["--rounds=6", "--eval_every=2", "--checkpoint_every=3"]


class Killed(BaseException):
    pass


@pytest.fixture
def killed(monkeypatch):
    """A function that runs a command up to its checkpoint of round 3, one after the last row."""
    save = journal.save

    def save_and_die(own, progress, *rest):
        save(own, progress, *rest)
        if progress.done == 3:
            own.checkpoints.wait_until_finished()
            raise Killed

    def run(command, *args):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(journal, "save", save_and_die)
            command(*args)

    return run


def rewrite(folder, states, old):
    """Saves the newest checkpoint again, with what `old` makes of its rounds and its `about`."""
    kept = checkpoints.open_checkpoints(folder)
    saved, _ = checkpoints.restore(kept, states)
    checkpoints.close(kept)
    assert saved.about["round"] == 3 and saved.infos is not None
    shutil.rmtree(folder / checkpoints.CHECKPOINTS)
    kept = checkpoints.open_checkpoints(folder)
    checkpoints.save(kept, saved.state, *old(saved.infos, saved.about))
    checkpoints.close(kept)


def test_a_run(killed, straight, ready, tmp_path, capsys):
    """No axis of trials; one digest of the settings and one of the schedule."""
    folder = tmp_path / "run"

    def old(infos, about):
        own = {name: about[name][0] for name in ("rows", "settings")}
        own |= {"seconds": about["seconds"], "schedule": about["schedules"][0]}
        return jax.tree.map(lambda a: a[0], infos), own

    killed(main, *OFTEN, f"--out_dir={folder}")
    rewrite(folder, ready.progress.states, old)
    settings = json.loads((folder / run_config.CONFIG).read_text())
    (folder / run_config.CONFIG).write_text(json.dumps(settings, sort_keys=True))
    assert main(*OFTEN, "--resume", f"--out_dir={folder}") == 0
    assert without_clocks(rows_of(folder)) == without_clocks(straight[1])
    capsys.readouterr()
    assert table.main(["table", str(folder)]) == 0
    assert "| cc_fedams | 0.1 | 6 |" in capsys.readouterr().out


def test_a_sweep(killed, ready, tmp_path, capsys):
    """A checkpoint with the rows of its trial; a record that names what was varied, and no more."""
    base = ["sweep", *SMALL, *OFTEN, "--devices=1", "--compilation_cache=off"]
    whole, folder = tmp_path / "whole", tmp_path / "old"
    both = [*base, "--vary=server_lr=0.1,0.3"]
    assert sweep.main([*both, f"--out_dir={whole}"]) == 0
    records = {one.name: one for one in results.read_all(whole)}
    killed(sweep.main, [*base, "--vary=server_lr=0.1", f"--out_dir={folder}"])
    (group,) = (folder / trial_checkpoints.UNDERWAY).iterdir()
    rows = metrics.keep_rows(group, {"server_lr=0.1": 2})
    (group / metrics.METRICS).unlink()

    def old(infos, about):
        return infos, {"rows": rows, "alive": [True], "seconds": about["seconds"]}

    rewrite(group, jax.tree.map(lambda a: a[None], ready.progress.states), old)
    done = {n: v for n, v in records["server_lr=0.3"]._asdict().items() if n != "varied"}
    (folder / results.TRIALS).mkdir()
    (folder / results.TRIALS / "server_lr=0.3.json").write_text(json.dumps(done))
    capsys.readouterr()
    assert sweep.main([*both, f"--out_dir={folder}"]) == 0
    assert "2 trials, 1 of them done before, 1 unfinished" in capsys.readouterr().out
    for one in results.read_all(folder):
        assert without_clocks(one.rows) == without_clocks(records[one.name].rows)
        assert one.varied == records[one.name].varied
    assert table.main(["table", str(folder)]) == 0
    assert capsys.readouterr().out.count("| cc_fedams | 0.") == 2
