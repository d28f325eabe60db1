"""What the tests of figures share."""

import json
from pathlib import Path

import pytest
from plots import rows, write_rows

from ccfl_jax.runs import run_config
from experiments.figures import curves


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn; their files hold nothing of them, which takes long."""
    drawn, plain = [], curves._figure
    monkeypatch.setattr(curves, "_figure", lambda *args: drawn.append(plain(*args)) or drawn[-1])
    monkeypatch.setattr(curves, "write_whole", lambda path, write: Path(path).write_bytes(b"png"))
    return drawn


@pytest.fixture
def two(tmp_path):
    """`two(settings, settings)`: the folders of runs with these besides some common settings."""

    def make(*every):
        folders = [tmp_path / f"run{k}" for k in range(len(every))]
        for folder, own in zip(folders, every, strict=True):
            write_rows(folder, rows([0.1, 0.2]))
            common = {
                "server": "cc_fedams",
                "server_lr": 0.1,
                "seed": 0,
                "rounds": 20,
                "rule": None,
            }
            common |= {"method": None, "out_dir": str(folder), "environment": {"jax": str(folder)}}
            (folder / run_config.CONFIG).write_text(json.dumps(common | own))
        return folders

    return make
