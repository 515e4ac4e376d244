import com.google.gson.reflect.TypeToken;
import io.kubernetes.client.openapi.ApiClient;
import io.kubernetes.client.openapi.apis.CoreV1Api;
import io.kubernetes.client.openapi.models.V1ConfigMap;
import io.kubernetes.client.util.Config;
import io.kubernetes.client.util.Watch;
import java.time.Duration;

/**
 * Lists and watches ConfigMaps with the Kubernetes project's Java client.
 *
 * <p>usage: Client NAMESPACE NAME (KUBECONFIG as in a sandbox). Prints {@code watching} when its watch begins, and ends
 * well when the ConfigMap NAME appears.
 */
public final class Client {
  private Client() {}

  public static void main(String[] arguments) throws Exception {
    String namespace = arguments[0];
    String name = arguments[1];
    ApiClient client = Config.defaultClient();
    client.setHttpClient(client.getHttpClient().newBuilder().readTimeout(Duration.ofMinutes(1)).build());
    CoreV1Api api = new CoreV1Api(client);
    var found = api.listNamespacedConfigMap(namespace).execute();
    String version = found.getMetadata().getResourceVersion();
    System.out.println("listed " + found.getItems().size() + " at " + version);
    var call = api.listNamespacedConfigMap(namespace).resourceVersion(version).watch(true).buildCall(null);
    try (Watch<V1ConfigMap> events =
        Watch.createWatch(client, call, new TypeToken<Watch.Response<V1ConfigMap>>() {}.getType())) {
      System.out.println("watching");
      for (Watch.Response<V1ConfigMap> event : events) {
        System.out.println(event.type + " " + event.object.getMetadata().getName());
        if (event.type.equals("ADDED") && event.object.getMetadata().getName().equals(name)) {
          System.exit(0);
        }
      }
    }
    System.err.println("the watch ended without the event");
    System.exit(1);
  }
}
