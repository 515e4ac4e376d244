// Lists and watches ConfigMaps with the Kubernetes project's JavaScript client.
//
// usage: client.js NAMESPACE NAME   (KUBECONFIG as in a sandbox)
//
// Prints `watching` when its watch begins, and ends well when the ConfigMap NAME appears.

import { CoreV1Api, KubeConfig, Watch } from '@kubernetes/client-node';

const [namespace, name] = process.argv.slice(2);
const config = new KubeConfig();
config.loadFromDefault();
const found = await config.makeApiClient(CoreV1Api).listNamespacedConfigMap({ namespace });
console.log(`listed ${found.items.length} at ${found.metadata.resourceVersion}`);
setTimeout(() => {
  console.error('the event did not come');
  process.exit(1);
}, 60_000);
await new Watch(config).watch(
  `/api/v1/namespaces/${namespace}/configmaps`,
  { resourceVersion: found.metadata.resourceVersion },
  (type, object) => {
    console.log(type, object.metadata.name);
    if (type === 'ADDED' && object.metadata.name === name) process.exit(0);
  },
  (error) => {
    console.error('the watch ended without the event', error);
    process.exit(1);
  },
);
console.log('watching');
