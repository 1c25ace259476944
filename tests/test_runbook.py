"""The runbook in docs/operating.md, and the files for operators beside the examples: what they name is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from queuert import Queuert, RunningJob
from queuert.cli.parser import build_parser

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "operating.md"
DEPLOY = ROOT / "examples" / "deploy"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs a checkout")


def commands() -> list[str]:
    """Every command line that the page tells somebody to type."""
    text = PAGE.read_text()
    inline = re.findall(r"`(queuert [^`]+)`", text)
    blocks = [
        line.partition("#")[0] for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()
    ]
    lines = [part.strip() for line in [*inline, *blocks] for part in re.split(r"[;|]", line)]
    return sorted({line for line in lines if line.startswith("queuert ")})


@pytest.mark.parametrize("line", commands())
def test_what_the_page_says_to_type_is_understood(line: str) -> None:
    words = ["01890a5d-ac96-774b-bcce-b302099a8057" if word.rstrip(".") == "ID" else word for word in line.split()[1:]]
    words = ["charge" if word in ("TYPE", "TYPE...", "T") else word for word in words]
    build_parser(json=True).parse_args(words)


def metric_names(text: str) -> set[str]:
    return set(re.findall(r"\bqueuert_[a-z_]+\b", text))


def test_every_metric_that_is_named_exists(app: Queuert) -> None:
    pytest.importorskip("prometheus_client")
    from queuert.metrics import Metrics

    @app.job("count")
    def count(job: RunningJob[int]) -> int:
        if job.input:
            job.fail("NO:GOOD")
        return 0

    app.declare("waits")
    metrics = Metrics(app)
    for number in range(2):
        app.start_chain(count, number)
    app.drain(types=["count"])
    app.start_chain("waits")
    shown = metrics.text().decode()
    served = metric_names(shown) | {name.removesuffix("_total") for name in metric_names(shown)}
    named = metric_names(PAGE.read_text()) - {"queuert_app", "queuert_url"}
    for file in DEPLOY.iterdir():
        named |= metric_names(file.read_text())
    assert len(named) >= 12
    assert {name for name in named if name not in served} == set()


def test_the_files_for_operators_can_be_read() -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert all(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    yaml = pytest.importorskip("yaml")
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    assert all({"alert", "expr", "annotations"} <= set(rule) for rule in rules)
    for name in ("kubernetes.yaml", "keda.yaml"):
        assert all(document["kind"] for document in yaml.safe_load_all((DEPLOY / name).read_text()))


def test_the_worker_of_the_kubernetes_example_is_understood() -> None:
    yaml = pytest.importorskip("yaml")
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    for document in documents:
        (container,) = document["spec"]["template"]["spec"]["containers"]
        assert container["command"][0] == "queuert"
        build_parser(json=True).parse_args(container["command"][1:])
