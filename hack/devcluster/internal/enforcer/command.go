// Package enforcer gives the verdict of the cluster's NetworkPolicies on every new connection of a pod.
package enforcer

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

// options are the flags of the command.
type options struct {
	kubeconfig string
	node       string
	queue      int
	socket     string
}

// NewCommand returns the kube-network-policies command: the upstream controller, which reads new connections from a
// netfilter queue, and beside it the socket on which the CNI chain announces a pod's address before the pod starts.
func NewCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "kube-network-policies",
		Short: "Enforce NetworkPolicies on the packets of a netfilter queue",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return o.run(ctx)
		},
	}
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "path of the kubeconfig")
	cmd.Flags().StringVar(&o.node, "hostname-override", "", "name of this node")
	cmd.Flags().IntVar(&o.queue, "queue-id", 100, "number of the netfilter queue")
	cmd.Flags().StringVar(&o.socket, "announce-socket", "", "path of the unix socket on which pod addresses are announced")
	for _, name := range []string{"kubeconfig", "hostname-override", "announce-socket"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is defined above
		}
	}
	return cmd
}

func (o options) run(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods()
	controller, err := networkpolicy.NewController(client, factory.Networking().V1().NetworkPolicies(),
		factory.Core().V1().Namespaces(), pods, nil, nil, nil, nil,
		networkpolicy.Config{QueueID: o.queue, NodeName: o.node})
	if err != nil {
		return fmt.Errorf("making the controller: %w", err)
	}
	announced := newAddresses(pods.Informer().GetIndexer())
	// The controller has set a transform of its own, which only drops the managed fields; this one does so too.
	if err := pods.Informer().SetTransform(announced.transform); err != nil {
		return fmt.Errorf("setting the transform of the pod informer: %w", err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := controller.Run(ctx); err != nil {
			return fmt.Errorf("enforcing: %w", err)
		}
		if ctx.Err() == nil {
			return errors.New("enforcing: the controller has ended unasked")
		}
		return nil
	})
	group.Go(func() error {
		factory.WaitForCacheSync(ctx.Done())
		return serve(ctx, o.socket, announced.handler(), 5*time.Second)
	})
	return group.Wait()
}
