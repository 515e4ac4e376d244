package enforcer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// announceTimeout bounds the wait for a pod that the CNI chain knows and the informer has not seen yet.
	announceTimeout = 10 * time.Second
	announcePoll    = 5 * time.Millisecond
)

// handler serves PUT /pods/NAMESPACE/NAME/UID, with the pod's address as the body, and DELETE of the same path.
// PUT answers 204 once the pod's policies apply to the address.
func (a *addresses) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /pods/{namespace}/{name}/{uid}", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		address, err := netip.ParseAddr(string(body))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		key := r.PathValue("namespace") + "/" + r.PathValue("name")
		uid := types.UID(r.PathValue("uid"))
		err = wait.PollUntilContextTimeout(r.Context(), announcePoll, announceTimeout, true, func(context.Context) (bool, error) {
			return a.announce(key, uid, address.String())
		})
		if err != nil {
			http.Error(w, fmt.Sprintf("pod %s with uid %s: %v", key, uid, err), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("DELETE /pods/{namespace}/{name}/{uid}", func(w http.ResponseWriter, r *http.Request) {
		a.withdraw(types.UID(r.PathValue("uid")))
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// serve answers on the unix socket until ctx ends, then lets requests finish within grace.
func serve(ctx context.Context, socket string, handler http.Handler, grace time.Duration) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing an earlier socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("listening for announcements: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: grace}
	context.AfterFunc(ctx, func() {
		deadline, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		_ = server.Shutdown(deadline)
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving announcements: %w", err)
	}
	return nil
}
