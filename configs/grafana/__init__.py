"""Grafana dashboards, written in Python and committed as the JSON that Grafana reads.

python -m configs.grafana.build              writes dashboards/*.json anew; --check says whether they are current
python -m configs.grafana.render             draws their panels from a running Prometheus as PNG files
"""
