// Package dns is CoreDNS with only the plugins that a cluster's own names need.
package dns

import (
	"fmt"
	"log"
	"os"

	"github.com/coredns/caddy"
	"github.com/spf13/cobra"

	// The server and its plugins register themselves.
	_ "github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

// NewCommand returns the coredns command, which serves the Corefile that --conf names until it is told to stop.
func NewCommand() *cobra.Command {
	var conf string
	cmd := &cobra.Command{
		Use:   "coredns",
		Short: "Serve the DNS names of the cluster",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return serve(conf) },
	}
	cmd.Flags().StringVar(&conf, "conf", "Corefile", "path of the Corefile")
	return cmd
}

func serve(conf string) error {
	contents, err := os.ReadFile(conf)
	if err != nil {
		return fmt.Errorf("reading the Corefile: %w", err)
	}
	logToStandardOutput()
	caddy.TrapSignals()
	instance, err := caddy.Start(caddy.CaddyfileInput{Contents: contents, Filepath: conf, ServerTypeName: "dns"})
	if err != nil {
		return fmt.Errorf("starting the server of %s: %w", conf, err)
	}
	instance.Wait()
	return nil
}

// logToStandardOutput ends a circle: the commands of Kubernetes, of which this program is one, have made klog the output of
// the standard logger, and CoreDNS makes the standard logger the output of klog. Each holds its lock while it writes to the
// other, so that two lines at once stop both for ever, with everything that logs.
func logToStandardOutput() {
	log.SetOutput(os.Stdout)
}
