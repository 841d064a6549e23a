"""Make ``grafana/dashboards``: python -m grafana.build; with --check, fail if they are not what would be made."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from grafana import pareto, service, verification
from grafana.panels import SELECTED_HOST, SOURCE, build

FOLDER = Path(__file__).parent / "dashboards"
DASHBOARDS = {"pareto": pareto, "verification": verification, "service": service}


def variables(made: dashboard.Dashboard) -> None:
    """Add what every dashboard is filtered by; each filter can be several, or all."""
    made.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for name, label, query in (
        ("job", "Job", "label_values(dspark_steps_total, job)"),
        ("instance", "Instance", 'label_values(dspark_steps_total{job=~"$job"}, instance)'),
        ("model", "Model", f"label_values(dspark_steps_total{{{SELECTED_HOST}}}, model_name)"),
    ):
        variable = dashboard.QueryVariable(name).label(label).query(query).datasource(SOURCE)
        variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(models.VariableSort.ALPHABETICAL_ASC)
        made.with_variable(variable.multi(True).include_all(True).all_value(".*"))


def build_dashboard(module: ModuleType) -> str:
    """Return a dashboard as JSON text, in which nothing depends on when or where it is made."""
    made = dashboard.Dashboard(module.TITLE).uid(module.UID).description(module.ABOUT).tags(["dspark"])
    made.refresh("10s").time("now-30m", "now").timezone("browser").readonly()
    made.tooltip(models.DashboardCursorSync.CROSSHAIR)
    link = dashboard.DashboardLink("DSpark").type(models.DashboardLinkType.DASHBOARDS).tags(["dspark"])
    made.link(link.as_dropdown(False).keep_time(True).include_vars(True))
    variables(made)
    for panel in module.PANELS:
        made.with_panel(build(panel))
    return JSONEncoder(sort_keys=True, indent=1).encode(made.build()) + "\n"


def main() -> int:
    """Write the dashboards; 1 with --check if any differs from its file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is stale")
    check = parser.parse_args().check
    stale = []
    for name, module in DASHBOARDS.items():
        path, text = FOLDER / f"{name}.json", build_dashboard(module)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if not check:
                FOLDER.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if check and stale:
        print(f"grafana/dashboards/{stale[0]} is stale; run: python -m grafana.build")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
