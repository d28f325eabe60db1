"""runs/run_config.py: settings can be read back, and no other run is taken up by mistake."""

import json
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import jax
import pytest
from refusal import refused

from ccfl_jax.runs import run_config

_CONFIG = {"alpha": 0.5, "seed": 0, "rounds": 10, "lanes": None}


def test_config_says_what_ran_where(tmp_path):
    run_config.write(tmp_path, _CONFIG)
    saved = json.loads((tmp_path / run_config.CONFIG).read_text())
    device = {"device": jax.devices()[0].device_kind, "devices": jax.device_count()}
    environment = saved.pop("environment")
    assert environment.items() >= {"jax": jax.__version__, **device}.items()
    assert saved == _CONFIG and environment["ccfl_jax"]
    assert environment["command"] == shlex.join(sys.argv)
    age = datetime.now(UTC) - datetime.fromisoformat(environment["date"])
    assert timedelta(seconds=-1) <= age < timedelta(minutes=5)
    assert [path.name for path in tmp_path.iterdir()] == [run_config.CONFIG]


def test_check_names_every_difference(tmp_path):
    run_config.write(tmp_path, _CONFIG)
    run_config.check(tmp_path, _CONFIG, ())
    run_config.check(tmp_path, {**_CONFIG, "rounds": 20}, ("rounds",))
    changed = {**_CONFIG, "rounds": 20, "alpha": 0.3, "seed": 1, "new": 2}
    differing = "alpha 0.5 -> 0.3, new None -> 2, seed 0 -> 1"
    message = f"{tmp_path}: expected the same settings, except rounds, found {differing}"
    refused(message, run_config.check, tmp_path, changed, ("rounds",))


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_check_without_a_run(tmp_path, name):
    (tmp_path / "empty").mkdir()
    message = f"{tmp_path / name}: expected the folder of an earlier run, found no config.json"
    refused(message, run_config.check, tmp_path / name, _CONFIG, (), kind=FileNotFoundError)


def test_check_damaged(tmp_path):
    path, check = tmp_path / run_config.CONFIG, run_config.check
    path.write_text('{"alpha": 0.')
    refused(f"{path}: expected JSON, found ...", check, tmp_path, _CONFIG, ())
    path.write_text("[3]")
    refused(f"{path}: expected the settings of a run, found [3]", check, tmp_path, _CONFIG, ())


def test_digest_of_settings_leaves_out_what_is_free_and_what_is_none():
    digest = run_config.digest(_CONFIG, ("rounds",))
    assert digest == run_config.digest({"seed": 0, "alpha": 0.5, "rounds": 99}, ("rounds",))
    assert digest != run_config.digest({**_CONFIG, "seed": 1}, ("rounds",))


@pytest.mark.skipif(shutil.which("git") is None, reason="Git makes the checkout")
def test_a_commit_is_that_of_a_checkout_that_has_the_file(tmp_path, monkeypatch):
    def git(*words):
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        line = ["git", *name, *words]
        return subprocess.run(line, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    file = tmp_path / "code.py"
    file.write_text("a")
    assert run_config.commit(file) is None  # no checkout
    git("init")
    (tmp_path / "other").write_text("b")
    git("add", "other")
    git("commit", "-m", "one")
    assert run_config.commit(file) is None  # it lies in one that does not have it
    git("add", "code.py")
    git("commit", "-m", "two")
    name = git("rev-parse", "HEAD").strip()
    assert run_config.commit(file) == name and len(name) == 40
    (tmp_path / "other").write_text("c")
    assert run_config.commit(file) == f"{name}-dirty"
    assert run_config.commit(tmp_path / "nowhere" / "code.py") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_config.commit(file) is None  # no Git
