#!/usr/bin/env bash
# Checks the alerts with promtool, runs their unit tests, and checks the expressions of the dashboard. No cluster is needed.
set -euo pipefail

cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The spec of a PrometheusRule is a file of rules.
sed -n '/^spec:$/,$p' config/prometheus/alerts.yaml | sed '1d; s/^  //' >"$work/alerts.rules.yaml"
cp config/prometheus/alerts_test.yaml "$work/"
hack/tools/promtool check rules "$work/alerts.rules.yaml"
hack/tools/promtool test rules "$work/alerts_test.yaml"

# Each expression of the dashboard becomes a recording rule, with Grafana's variables replaced, so that promtool parses it.
python3 - config/grafana/cli-mcp.json >"$work/dashboard.rules.yaml" <<'PYTHON'
import json, sys
panels = json.load(open(sys.argv[1]))["panels"]
rules = []
for panel in panels:
    for target in panel.get("targets", []):
        expression = target["expr"].replace("$__rate_interval", "5m").replace("$namespace", ".*").replace("$instance", ".*")
        rules.append({"record": f"dashboard:panel{panel['id']}:{target['refId']}", "expr": expression})
assert rules, "the dashboard asks Prometheus nothing"
print(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
PYTHON
hack/tools/promtool check rules "$work/dashboard.rules.yaml"
