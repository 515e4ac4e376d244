"""Lists and watches ConfigMaps with the Kubernetes project's Python client.

usage: client.py NAMESPACE NAME   (KUBECONFIG as in a sandbox)

Prints `watching` when its watch begins, and ends well when the ConfigMap NAME appears.
"""

import sys

from kubernetes import client, config, watch

namespace, name = sys.argv[1:]
config.load_kube_config()
api = client.CoreV1Api()
found = api.list_namespaced_config_map(namespace)
print(f"listed {len(found.items)} at {found.metadata.resource_version}", flush=True)
print("watching", flush=True)
events = watch.Watch().stream(
    api.list_namespaced_config_map,
    namespace,
    resource_version=found.metadata.resource_version,
    timeout_seconds=60,
)
for event in events:
    print(event["type"], event["object"].metadata.name, flush=True)
    if event["type"] == "ADDED" and event["object"].metadata.name == name:
        sys.exit(0)
sys.exit("the watch ended without the event")
