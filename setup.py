"""Names the packages: every one under `queuert/`, and `sql/`, which is installed as `queuert.sql`."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["queuert", "queuert.*"]), "queuert.sql"],
    package_dir={"queuert.sql": "sql"},
)
