"""Methods by name, and the flags that refine them."""

import inspect

import jax.numpy as jnp
import pytest
from problems import task_of
from refusal import refused

from experiments.config import expression, methods, run_flags, sweep_flags
from experiments.config.methods import FORMS, METHODS, PERSONAL
from experiments.training import method, personal, pieces

BASE = ("--dataset=digits", "--model=mlp", "--num_clients=30")


def parse(*words):
    return run_flags.parse(["train", *BASE, *words])


@pytest.mark.parametrize("flag", FORMS)
def test_forms_are_functions_with_these_arguments(flag):
    """In their order, with what a run knows besides; and its defaults, where both have one."""
    for form in FORMS[flag]:
        name, _ = expression._parts(form)
        function = pieces.function(name)
        known = inspect.signature(function).parameters
        listed = expression.argument_names(name, FORMS[flag])
        if flag == "attack":
            assert listed.pop(0) == "share" and "attackers" in known
            known = {one: p for one, p in known.items() if one not in ("data", "num_classes")}
        assert listed == [one for one in known if one in listed], form
        others = {one for one, p in known.items() if p.default is p.empty} - {*listed}
        told = {"local_lr", "rule", "attackers", "aggregate", "uploads", "rounds", "task"}
        assert others <= told, form


def test_a_method_fills_what_is_not_given():
    config = parse("--method=scaffold")
    assert (config.server, config.server_lr, config.rule) == ("cc_fedsgd", 1.0, "scaffold")
    assert config.normalise == "none" and config.b1 is None
    config = parse("--method=scaffold", "--server=cc_fedadam", "--server_lr=0.1", "--rule=feddyn")
    assert (config.server, config.server_lr, config.rule) == ("cc_fedadam", 0.1, "feddyn")
    assert config.b1 == 0.9 and config.normalise == "none"


def test_a_method_on_the_command_line_comes_before_a_preset():
    words = ["train", "--preset=digits", "--method=fedprox"]
    config = run_flags.parse(words)
    assert (config.server, config.server_lr, config.weights) == ("cc_fedsgd", 1.0, "samples")
    assert run_flags.parse([*words, "--server_lr=0.5"]).server_lr == 0.5


def test_bytes_of_a_personal_model_are_those_of_what_is_shared():
    """Layers of 300 and 50 numbers; Ditto's second model stays at home; top-k of 10 %
    of what is shared is 30 values and places."""
    task = task_of(lambda key: {"b": jnp.zeros(300), "a": jnp.ones(50)}, None)
    words = ("--method=fedper", "--method=lg_fedavg", "--method=ditto")
    words += ("--method=fedper --upload=top_k(0.1)",)
    configs = [parse("--client_test=0.2", *w.split()) for w in words]
    tasks = [personal.task_of(config, task) for config in configs]
    found = [method.sent_bytes(*pair) for pair in zip(configs, tasks, strict=True)]
    assert found == [(1200, 1200), (200, 200), (1400, 1400), (240, 1200)]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_whole(name):
    """With a rate for those that have none of their own, which are refused by name without."""
    rate = [] if "server_lr" in METHODS[name] else ["--server_lr=0.1"]
    tested = ["--client_test=0.2"] if name in PERSONAL else []
    config = parse(f"--method={name}", *rate, *tested)
    assert config.server == METHODS[name]["server"]
    task = task_of(lambda key: {"a": jnp.zeros(3), "b": jnp.ones(2)}, None)
    made = method.made(config, method.numbers(config), task)
    assert (made.rule is None) == (not config.rule and not config.weights and not config.privacy)
    if rate:
        message = "--server_lr: expected a number >= 0 (cc_fedavg alone needs none), found none"
        refused(message, parse, f"--method={name}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--method=scafold", "--method: expected ..., found 'scafold'; did you mean scaffold?"),
        ("--rule=fedprox(a)", "--rule: expected fedprox(mu=0.01), ..., found 'fedprox(a)'..."),
        ("--upload=clip", "--upload: expected clip(norm), ...; several with + between two, ..."),
        ("--method=fednova --weights=samples", "--weights: expected with another rule than "
         "fednova, which averages in its own way, found samples"),
        ("--method=mifa --upload=clip(1)", "--upload: expected with another rule than mifa, which "
         "averages memories, found clip(1)"),
        ("--method=fedavg --aggregate=median", "--weights: expected without --aggregate, whose "
         "uploads weigh the same, found samples with --aggregate=median"),
        ("--method=scaffold --local=adam(0.1)", "--local: expected sgd, of which scaffold knows "
         "the rate, found adam(0.1)"),
        ("--method=fedavg --local=adam(0.1) --local_lr=1", "--local_lr: expected in brackets, "
         "--local='adam(0.001)', found 1.0 with --local=adam(0.1)"),
        ("--method=fednova --privacy=dp_fedavg(1,1)", "--privacy: expected with another rule than "
         "fednova, which averages in its own way, found dp_fedavg(1,1)"),
        ("--method=scaffold --privacy=dp_ftrl(1,1)", "--privacy: expected with another rule than "
         "scaffold, whose memories' mean gets no noise, found dp_ftrl(1,1)"),
        ("--method=fedavg --privacy=dp_fedavg(1,1)", "--weights: expected without --privacy, whose "
         "uploads weigh the same, found samples with --privacy=dp_fedavg(1,1)"),
        ("--method=dp_fedavg --aggregate=median", "--aggregate: expected without --privacy, whose "
         "own mean is bounded, found median with --privacy=dp_fedavg(1,1)"),
        ("--method=dp_fedavg --privacy=dp_fedavg(1)", "--privacy: expected "
         "dp_fedavg(clip,noise_multiplier), ..., found 'dp_fedavg(1)'..."),
        ("--method=dp_fedavg --privacy=dp_fedavg_adaptive(0) --attack=alie(0.2)", "--attack: "
         "expected label_flip with dp_fedavg_adaptive, whose clients send a count too, found "
         "alie(0.2)"),
        ("--method=ditto", "--client_test: expected a share, as 0.2, with ditto, to score clients' "
         "own models on, found none"),
        ("--method=fedprox --delta=0.1", "--delta: expected with --privacy, found 0.1 without"),
        ("--method=dp_fedavg --delta=1", "--delta: expected a number > 0 and < 1, found 1.0"),
        ("--method=fedavg --work=fixed --randomness=2", "--randomness: expected 1, or "
         "--work=random, found 2.0 with --work=fixed"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(words, message):
    refused(message, parse, *words.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--rule=fedprox(-1)", "--rule: mu: expected a finite number >= 0, found -1.0"),
        ("--rule=ditto(-1) --client_test=0.2", "--rule: weight: expected a finite number >= 0, "
         "found -1.0"),
        ("--rule=scaffold(3)", "--rule: option: expected an integer from 1 to 2, found 3"),
        ("--rule=scaffold(1.5)", "--rule: option: expected an integer from 1 to 2, found 1.5"),
        ("--upload=top_k(2)", "--upload: share: expected a finite number > 0 and <= 1, found 2.0"),
        ("--upload=sign+clip(1)", "--upload: expected at most one compressor, at the end, found "
         "another"),
        ("--privacy=dp_fedavg(0,1)", "--privacy: clip: expected a finite number > 0, found 0.0"),
        ("--privacy=dp_ftrl(1,-1)", "--privacy: noise_multiplier: expected a finite number >= 0, "
         "found -1.0"),
        ("--attack=label_flip(2)", "--attack: share: expected a finite number >= 0 and <= 1, found "
         "2.0"),
        ("--rule=mifa(wait=5)", "--rule: expected 0 or 1 for wait, found 5"),
        ("--upload=top_k(0.1,0.5)", "--upload: expected 0 or 1 for feedback, found 0.5"),
        ("--aggregate=krum(-1)", "--aggregate: byzantine: expected an integer >= 0, found -1"),
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused_by_their_flag(words, message):
    config = parse("--server=cc_fedsgd", "--server_lr=1", *words.split())
    refused(message, lambda: method.made(config, method.numbers(config)))


def test_a_label_flip_fits_what_no_other_attack_does_but_wants_one_label():
    private = "--privacy=dp_fedavg_adaptive(0.1)"
    for words in (["--method=fednova"], ["--method=mifa"], ["--method=dp_fedavg", private]):
        assert parse(*words, "--attack=label_flip(0.2)").attack == "label_flip(0.2)"
    words = ("--dataset=stackoverflow", "--model=tags", "--partition=natural")
    message = "--attack: expected label_flip with one label a sample, found label_flip(0.2) with "
    words += ("--data_dir=here", "--server_lr=1", "--attack=label_flip(0.2)")
    refused(message + "--dataset=stackoverflow", parse, *words)


def test_brackets_hold_commas_and_blanks_together_in_a_sweep():
    words = ["sweep", *BASE, "--out_dir=o", "--method=fedsam"]
    vary = "--vary=rule=fedpa(1, 2,3),feddyn(0.1) seed=0,1"
    trials = sweep_flags.parse_sweep([*words, vary]).trials
    assert [*trials][::2] == ["rule=fedpa(1, 2,3) seed=0", "rule=feddyn(0.1) seed=0"]


def test_bytes_are_those_of_what_is_sent():
    """Of d = 1,000 numbers: a model is 4,000 bytes; top-k of 1 % 10 values and 10 places; SCAFFOLD
    sends and receives its variate too."""
    task = task_of(lambda key: {"w": jnp.zeros(1000)}, None)
    words = ("", "--upload=clip(1)+top_k(0.01,1)", "--rule=scaffold")
    found = [method.sent_bytes(parse("--method=fedavg", *w.split()), task) for w in words]
    assert found == [(4000, 4000), (80, 4000), (8000, 8000)]
    assert methods.MODELS_SENT["scaffold"] == 2
