"""Writes the Grafana dashboards in monitoring/dashboards: `python -m tools.dashboards [--check]`.

A page is a module with `page()`; `panels.py` has what all pages are made of, so that they look alike.
"""
