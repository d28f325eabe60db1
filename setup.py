"""What the wheel holds: the library, and the commands under a name that nobody else takes."""

from setuptools import find_packages, setup

COMMANDS = (
    "ccfl_experiments"  # two projects with a package `experiments` would overwrite each other
)

setup(
    packages=[
        *find_packages(include=["ccfl_jax*"]),
        *(
            name.replace("experiments", COMMANDS, 1)
            for name in find_packages(include=["experiments*"])
        ),
    ],
    package_dir={COMMANDS: "experiments"},
    package_data={"ccfl_jax": ["py.typed"], COMMANDS: ["presets/*", "pages/page.*", "pages/*.js"]},
    include_package_data=False,  # MANIFEST.in is of the source distribution alone
)
