// Lists and watches ConfigMaps with client-go.
//
// usage: client NAMESPACE NAME   (KUBECONFIG as in a sandbox)
//
// Prints `watching` when its watch begins, and ends well when the ConfigMap NAME appears.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	// Not the typed clientset: it compiles every API for the same requests.
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

func run(namespace, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	api := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace(namespace)
	found, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	fmt.Printf("listed %d at %s\n", len(found.Items), found.GetResourceVersion())
	events, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: found.GetResourceVersion()})
	if err != nil {
		return err
	}
	defer events.Stop()
	fmt.Println("watching")
	for event := range events.ResultChan() {
		object, isObject := event.Object.(*unstructured.Unstructured)
		if !isObject {
			return fmt.Errorf("%s %T", event.Type, event.Object)
		}
		fmt.Println(event.Type, object.GetName())
		if event.Type == watch.Added && object.GetName() == name {
			return nil
		}
	}
	return fmt.Errorf("the watch ended without the event")
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
