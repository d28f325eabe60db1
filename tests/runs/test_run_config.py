"""ccfl_jax/config_file.py: settings can be read back, and no other run is taken up by mistake."""

import json

import jax
import pytest

from ccfl_jax.runs import run_config

_CONFIG = {"alpha": 0.5, "seed": 0, "rounds": 10, "lanes": None}


def test_config_says_what_ran_where(tmp_path):
    run_config.write(tmp_path, _CONFIG)
    saved = json.loads((tmp_path / run_config.CONFIG).read_text())
    environment = saved.pop("environment")
    assert saved == _CONFIG
    assert environment["jax"] == jax.__version__
    assert environment["device"] == jax.devices()[0].device_kind
    assert environment["devices"] == jax.device_count()
    assert "ccfl_jax" in environment
    assert [path.name for path in tmp_path.iterdir()] == [run_config.CONFIG]


def test_check_names_every_difference(tmp_path):
    run_config.write(tmp_path, _CONFIG)
    run_config.check(tmp_path, _CONFIG, ())
    run_config.check(tmp_path, {**_CONFIG, "rounds": 20}, ("rounds",))
    changed = {**_CONFIG, "rounds": 20, "alpha": 0.3, "seed": 1, "new": 2}
    with pytest.raises(ValueError) as caught:
        run_config.check(tmp_path, changed, ("rounds",))
    message = str(caught.value)
    assert "alpha 0.5 -> 0.3, new None -> 2, seed 0 -> 1" in message
    assert "except rounds" in message


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_check_without_a_run(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=rf"{name}: found no config.json"):
        run_config.check(tmp_path / name, _CONFIG, ())


def test_check_damaged(tmp_path):
    (tmp_path / run_config.CONFIG).write_text('{"alpha": 0.')
    with pytest.raises(ValueError, match=r"config.json: not readable"):
        run_config.check(tmp_path, _CONFIG, ())


def test_digest_of_settings_leaves_out_what_is_free_and_what_is_none():
    digest = run_config.digest(_CONFIG, ("rounds",))
    assert digest == run_config.digest({"seed": 0, "alpha": 0.5, "rounds": 99}, ("rounds",))
    assert digest != run_config.digest({**_CONFIG, "seed": 1}, ("rounds",))
