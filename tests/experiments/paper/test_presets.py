"""paper/presets.py: the presets are the paper's experiments, and all their trials are legal."""

import pytest

from experiments.paper import presets
from experiments.sweeps import selection

# The paper's nine rates, 10^-3 to 10^1 in half steps.
RATES = [10 ** (k / 2) for k in range(-6, 3)]
TAGS = {"dataset": "stackoverflow", "model": "tags", "partition": "natural", "alpha": None}
TAGS |= {"batch_size": 100, "min_examples": 20, "max_examples": 500, "max_words": 150}
EPS = [1e-5, 1e-4, 1e-3]
# Name -> what differs from the defaults, in all that the paper runs.
CHANGED = {
    "fig1_alpha3": {"alpha": 3.0},
    "fig1_alpha05": {},
    "fig2_tau10": {"max_delay": 10},
    "fig2_r3": {"randomness": 3.0},
    "fig2_fmnist": {"dataset": "fashion_mnist", "model": "cnn", "alpha": 0.3, "max_delay": 10},
    "fig3_beta": {},
    "fig3_gamma": {},
    "fig3_eps": {},
    "table3_cifar100": {"dataset": "cifar100"},
    "table3_stackoverflow": TAGS | {"data_dir": "here"},
    "app_r1": {"randomness": 1.0},
    "app_r2": {},
    "app_alpha03": {"alpha": 0.3},
}
DEFAULTS = {"dataset": "cifar10", "model": "resnet18", "num_clients": 100, "buffer_size": 5}
DEFAULTS |= {"rounds": 500, "alpha": 0.5, "max_delay": 5, "local_epochs": 3, "randomness": 2.0}
DEFAULTS |= {"batch_size": 20, "normalise": "steps", "seed": 0}


def configs(trials):
    return [trial.config for trial in trials.values()]


def of_the_paper(name):
    return presets.preset(name, {"data_dir": "here"} if name == "table3_stackoverflow" else {})


@pytest.mark.parametrize("name", CHANGED)
def test_the_grid_has_the_papers_settings_and_claims_are_of_its_methods(name):
    preset = of_the_paper(name)
    assert preset.claims and presets.names() == list(CHANGED)
    for claim in preset.claims:
        assert {*claim["better"], claim["than"]} <= {*preset.methods}
        assert claim.keys() <= {"better", "than", "points", "part", "at", "from", "to"}
    trials = configs(presets.rate_grid(preset, "paper", None))
    per_rate = len(preset.local_lr or [0])
    tuned = [method for method in preset.methods if method != "cc_fedavg"]
    assert len(trials) == (9 * len(tuned) + ("cc_fedavg" in preset.methods)) * per_rate
    for config in trials:
        for field, value in (DEFAULTS | CHANGED[name]).items():
            assert getattr(config, field) == value, field
        if config.server in ("cc_fedadam", "cc_fedams"):
            assert (config.b1, config.b2, config.eps) == (0.9, 0.99, 1e-3)
            assert config.initial_accumulator == 0
        if not preset.local_lr:
            assert config.local_lr == 0.01
    for method in tuned:
        rates = {config.server_lr for config in trials if config.server == method}
        assert sorted(rates) == pytest.approx(RATES, rel=1e-3)
    for flag, value in ((flag, v) for flag, values in preset.vary.items() for v in values):
        setting = {"server": "cc_fedadam", "server_lr": 0.1, flag: value}
        (config,) = configs(presets.trial(preset, setting))
        assert getattr(config, flag) == pytest.approx(value)


def test_narrower_and_wider_grids():
    preset = presets.preset("fig1_alpha3", {})
    coarse = configs(presets.rate_grid(preset, "coarse", 7))
    rates = sorted({c.server_lr for c in coarse if c.server == "cc_fedams"})
    assert rates == pytest.approx([1e-3, 1e-2, 1e-1, 1, 10])
    assert {config.rounds for config in coarse} == {7}
    wide = configs(presets.rate_grid(preset, "wide", None))
    for method, most in (("cc_fedsgd", 10**2.5), ("cc_fedavgm", 10**2.5), ("cc_fedams", 10)):
        rates = [config.server_lr for config in wide if config.server == method]
        assert max(rates) == pytest.approx(most, rel=1e-3)
    assert len(wide) == 1 + 3 * 9 + 2 * 12


def test_a_joint_grid_has_eps_by_coarse_rates_for_methods_with_eps_alone():
    preset = presets.preset("fig3_eps", {})
    trials = presets.rate_grid(preset, "joint", None)
    found = {}
    for config in configs(trials):
        found.setdefault(config.server, []).append((config.server_lr, config.eps))
    assert found.pop("cc_fedsgd") == [(pytest.approx(rate, rel=1e-3), None) for rate in RATES]
    assert "cc_fedadam" in found
    for pairs in found.values():
        assert pairs == [(rate, eps) for rate in (1e-3, 0.01, 0.1, 1, 10) for eps in EPS]
    assert "server=cc_fedadam server_lr=0.01 eps=1e-05" in trials


def test_flags_of_the_command_line_replace_the_presets_and_names_say_what_was_set():
    preset = presets.preset("fig3_beta", {"dataset": "digits", "model": "mlp", "rounds": "9"})
    setting = {"server": "cc_fedsgd", "server_lr": 10**-2.5, "seed": 2}
    ((name, (varied, config)),) = presets.trial(preset, setting).items()
    assert (config.dataset, config.model, config.rounds, config.seed) == ("digits", "mlp", 9, 2)
    assert name == "server=cc_fedsgd server_lr=0.003162 seed=2" and config.server_lr == 0.003162
    assert varied == {"server": "cc_fedsgd", "server_lr": "0.003162", "seed": "2"}
    preset = presets.preset("table3_stackoverflow", {"data_dir": "here", "local_lr": "3"})
    assert {c.local_lr for c in configs(presets.rate_grid(preset, "coarse", None))} == {3.0}


def test_a_rate_on_the_edge_of_what_was_tried_is_told():
    def setting(server, rate, own):
        return {"server": server, "server_lr": str(rate), "local_lr": str(own)}

    tried = [setting("a", rate, own) for rate in (1, 2, 3) for own in (1, 2)]
    tried += [setting("b", 9, 0.1)]
    assert selection.on_edge(setting("a", 2, 2), tried) == ["local_lr"]
    assert selection.on_edge(setting("a", 3, 1), tried) == ["server_lr", "local_lr"]
    assert selection.on_edge(setting("b", 9, 0.1), tried) == []
    tried = [setting("a", rate, 1) | {"eps": str(eps)} for rate in (1, 2, 3) for eps in EPS]
    assert selection.on_edge(setting("a", 2, 1) | {"eps": "1e-05"}, tried) == ["eps"]
    assert selection.on_edge(setting("a", 3, 1) | {"eps": "0.0001"}, tried) == ["server_lr"]


@pytest.mark.parametrize(
    "change",
    [
        ("[common]", "[common"),
        ("[common]", "[../x]"),
        ("[fig1_alpha3]", '["../x"]'),
        ('title = "Figure 1 a', 'name = "Figure 1 a'),
        ('methods = ["cc_fedavg", ', 'methods = [["cc_fedavg"], '),
        ("vary = { b1 =", "vary = { rounds ="),
        ("flags = { alpha = 3.0 }", "flags = 3.0"),
    ],
)
def test_a_damaged_file_is_refused_by_its_name(tmp_path, monkeypatch, change):
    path, text = tmp_path / "own.toml", presets._FILE.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change, 1))
    monkeypatch.setattr(presets, "_FILE", path)
    with pytest.raises(ValueError) as error:
        presets.names()
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)
