"""README's example is code that runs."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).parents[1] / "README.md"


def test_the_example_trains(capsys):
    code = "\n".join(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    losses = names["info"].train_loss
    assert losses.shape == (200,) and losses[-20:].mean() < 0.5 * losses[:20].mean()
    assert "accuracy" in capsys.readouterr().out


def test_every_file_it_links_is_there():
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    missing = [link for link in links if "://" not in link and not (README.parent / link).exists()]
    assert links and not missing


def test_its_commands_name_presets_and_methods_that_exist():
    from experiments import flags

    text = README.read_text()
    for preset in re.findall(r"--flagfile=(\S+?\.flags)", text):
        assert (README.parent / preset).is_file()
    servers = re.findall(r"--server=(\w+)", text)
    assert set(servers) == set(flags.SERVERS)
    np.testing.assert_array_equal(sorted(servers), sorted(set(servers)))
