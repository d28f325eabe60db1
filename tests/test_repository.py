"""Files about the project, which nothing in it reads: citation, issue forms, hooks."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(name):
    return yaml.safe_load((ROOT / name).read_text())


def test_the_citation_is_readmes():
    paper = read("CITATION.cff")["preferred-citation"]
    names = [f"{one['family-names']}, {one['given-names']}" for one in paper["authors"]]
    found = dict(re.findall(r"(\w+)={([^{}]+)}", (ROOT / "README.md").read_text()))
    assert {**paper, "authors": " and ".join(names), "year": str(paper["year"])} == {
        "type": "article", "title": found["title"], "authors": found["author"],
        "journal": found["journal"], "year": found["year"],
    }  # fmt: skip


def test_the_citation_is_of_this_project():
    software = read("CITATION.cff")
    assert software["title"] == PROJECT["name"] and software["license"] == PROJECT["license"]
    assert software["abstract"] == PROJECT["description"] + "."


@pytest.mark.parametrize("name", ["bug", "question"])
def test_an_issue_form_is_one(name):
    """As GitHub asks for: texts, and fields of a known type with an id of their own and a label."""
    form = read(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert form["name"] and form["description"] and form["body"]
    assert {field["type"] for field in form["body"]} <= {"textarea", "input", "dropdown"}
    assert all(field["attributes"]["label"] for field in form["body"])
    assert len({field["id"] for field in form["body"]}) == len(form["body"])


def test_what_a_bug_form_asks_to_be_run_runs():
    (field,) = [
        f for f in read(".github/ISSUE_TEMPLATE/bug.yml")["body"] if f["id"] == "environment"
    ]
    (code,) = re.findall(r'python -c "(.+?)"`', field["attributes"]["description"])
    names = {}
    exec(compile(ast.parse(code), "bug.yml", "exec"), names)
    assert {"ccfl_jax", "jax", "device"} <= names["run_config"].environment().keys()


def test_hooks_have_a_version_that_the_project_takes():
    (source,) = read(".pre-commit-config.yaml")["repos"]
    pins = {pin for hook in source["hooks"] for pin in hook["additional_dependencies"]}
    (pin,) = map(Requirement, pins)
    wanted = map(Requirement, PROJECT["optional-dependencies"]["test"])
    (own,) = [one for one in wanted if one.name == pin.name]
    (version,) = pin.specifier
    assert version.operator == "==" and own.specifier.contains(version.version)
