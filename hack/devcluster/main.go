// Command devcluster is every Go component of a single-node Kubernetes in one program, so that one build (and one
// copy of the shared code) serves them all. It takes its role from the name it is called by, or from its first argument.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/component-base/cli"
)

func main() {
	name := filepath.Base(os.Args[0])
	newCommand, known := roles[name]
	if !known && len(os.Args) > 1 {
		name = os.Args[1]
		if newCommand, known = roles[name]; known {
			os.Args = os.Args[1:]
		}
	}
	if !known {
		fmt.Fprintf(os.Stderr, "error: unknown role %q: call this program by the name of a role, or give one as the first argument: %s\n",
			name, strings.Join(slices.Sorted(maps.Keys(roles)), ", "))
		os.Exit(2)
	}
	os.Exit(cli.Run(newCommand()))
}
