"""Dashboards, rules and alerts; `python -m grafana.build` makes the dashboards."""
