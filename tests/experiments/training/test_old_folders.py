"""Folders of runs and of sweeps in the form of the first versions resume, and are listed."""

import json
from pathlib import Path

import jax
import pytest
from small_runs import SMALL, main, rows_of, without_clocks

from ccfl_jax.runs import checkpoints, metrics, run_config
from experiments import sweep, table
from experiments.sweeps import results

OFTEN = ["--rounds=6", "--eval_every=2", "--checkpoint_every=3"]


class Killed(BaseException):
    pass


def killed(old, command, *args):
    """Runs a command until its checkpoint of round 3, one after the last row, for which `old` says
    what is saved of its rounds and its `about`."""
    save = checkpoints.save

    def save_and_die(kept, state, infos, about, score):
        if infos is None:
            save(kept, state, infos, about, score)
        else:
            save(kept, state, *old(infos, about, Path(kept.directory).parent))
            kept.wait_until_finished()
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(checkpoints, "save", save_and_die)
        command(*args)


def test_a_run(straight, tmp_path, capsys):
    """No axis of trials; one digest of the settings and one of the schedule."""

    def old(infos, about, _):
        own = {"settings": about["settings"][0], "schedule": about["schedules"][0]}
        own |= {"rows": about["rows"][0], "seconds": about["seconds"]}
        return jax.tree.map(lambda a: a[0], infos), own

    killed(old, main, *OFTEN, f"--out_dir={tmp_path}")
    settings = json.loads((tmp_path / run_config.CONFIG).read_text())
    (tmp_path / run_config.CONFIG).write_text(json.dumps(settings, sort_keys=True))
    assert main(*OFTEN, "--resume", f"--out_dir={tmp_path}") == 0
    assert without_clocks(rows_of(tmp_path)) == without_clocks(straight[1])
    capsys.readouterr()
    assert table.main(["table", str(tmp_path)]) == 0
    assert "| cc_fedams | 0.1 | 6 |" in capsys.readouterr().out


@pytest.mark.slow
def test_a_sweep(tmp_path, capsys):
    """A checkpoint with the rows of its trial; a record that names what was varied, and no more."""

    def old(infos, about, group):
        rows = metrics.keep_rows(group, {"server_lr=0.1": 2})
        (group / metrics.METRICS).unlink()
        return infos, {"rows": rows, "alive": [True], "seconds": about["seconds"]}

    base = ["sweep", *SMALL, *OFTEN, "--devices=1", "--compilation_cache=off"]
    whole, folder = tmp_path / "whole", tmp_path / "old"
    both = [*base, "--vary=server_lr=0.1,0.3"]
    assert sweep.main([*both, f"--out_dir={whole}"]) == 0
    records = {one.name: one for one in results.read_all(whole)}
    killed(old, sweep.main, [*base, "--vary=server_lr=0.1", f"--out_dir={folder}"])
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
