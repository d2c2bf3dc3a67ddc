"""The alert rules and the dashboard use only existing metrics, by their Prometheus names."""

import json
import re
from pathlib import Path

import pytest
from opentelemetry.metrics import NoOpMeter

from transfer_async.integrations.opentelemetry.metrics import Instruments

ALERTS = Path(__file__).parent.parent.parent / "docs" / "alerts"
NAMED = re.compile(r"\btransfer_async_\w+")
LABELS = {"transfer_async_outcome", "transfer_async_hook_name", "transfer_async_disposition"}


class _Listing(NoOpMeter):
    """Records the names of the instruments that are created."""

    def __init__(self) -> None:
        super().__init__("")
        self.made: set[str] = set()

    def create_counter(self, name, unit="", description=""):
        self.made.add(_in_prometheus(name, unit) + "_total")
        return super().create_counter(name, unit, description)

    def create_histogram(self, name, unit="", description="", *, explicit_bucket_boundaries_advisory=None):
        self.made.add(_in_prometheus(name, unit) + "_bucket")
        return super().create_histogram(name, unit, description)

    def create_observable_gauge(self, name, callbacks=None, unit="", description=""):
        self.made.add(_in_prometheus(name, unit))
        return super().create_observable_gauge(name, callbacks, unit, description)


def _in_prometheus(name: str, unit: str) -> str:
    """Return the name in Prometheus. Units in braces are omitted, and others are spelled out."""
    plain = name.replace(".", "_")
    return f"{plain}_seconds" if unit == "s" else plain


@pytest.fixture
def there() -> set[str]:
    meter = _Listing()
    Instruments(meter, {})
    return meter.made


@pytest.mark.parametrize("name", ["prometheus.yml", "grafana.json"])
def test_alerts_and_dashboard_name_only_existing_metrics(name: str, there: set[str]):
    named = set(NAMED.findall((ALERTS / name).read_text(encoding="utf-8"))) - LABELS

    assert named
    assert named - there == set()


def test_every_age_has_an_alert(there: set[str]):
    rules = (ALERTS / "prometheus.yml").read_text(encoding="utf-8")

    ages = [one for one in there if "oldest_age" in one]
    assert len(ages) == 3
    assert all(age in rules for age in ages)


def test_the_dashboards_panels_have_unique_ids_and_expressions():
    board = json.loads((ALERTS / "grafana.json").read_text(encoding="utf-8"))

    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(target["expr"] for panel in board["panels"] for target in panel["targets"])


def test_the_alert_rules_are_valid():
    yaml = pytest.importorskip("yaml", reason="they are read as YAML")
    (group,) = yaml.safe_load((ALERTS / "prometheus.yml").read_text(encoding="utf-8"))["groups"]

    for rule in group["rules"]:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert set(rule["annotations"]) == {"summary", "description"}
