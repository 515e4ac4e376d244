package enforcer

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

const byIP = "byIP"

func newStore() cache.Indexer {
	return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{byIP: func(obj any) ([]string, error) {
		var ips []string
		for _, ip := range obj.(*corev1.Pod).Status.PodIPs {
			ips = append(ips, ip.IP)
		}
		return ips, nil
	}})
}

func pod(uid types.UID, ips ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: uid}}
	for _, ip := range ips {
		pod.Status.PodIP = ip
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return pod
}

func send(ctx context.Context, a *addresses, method, uid, body string) int {
	recorder := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(ctx, method, "/pods/ns/pod/"+uid, strings.NewReader(body))
	a.handler().ServeHTTP(recorder, request)
	return recorder.Code
}

func uidsWith(t *testing.T, store cache.Indexer, ip string) []types.UID {
	t.Helper()
	objs, err := store.ByIndex(byIP, ip)
	if err != nil {
		t.Fatal(err)
	}
	var uids []types.UID
	for _, obj := range objs {
		uids = append(uids, obj.(*corev1.Pod).UID)
	}
	return uids
}

func TestAnnouncedAddressIsFoundBeforeItIsReported(t *testing.T) {
	store := newStore()
	a := newAddresses(store)
	original := pod("a")
	if err := store.Add(original); err != nil {
		t.Fatal(err)
	}
	if code := send(t.Context(), a, http.MethodPut, "a", "10.0.0.1"); code != http.StatusNoContent {
		t.Fatalf("PUT: got status %d, want 204", code)
	}
	if uids := uidsWith(t, store, "10.0.0.1"); len(uids) != 1 || uids[0] != "a" {
		t.Errorf("pods with the address: got %v, want [a]", uids)
	}
	if len(original.Status.PodIPs) != 0 {
		t.Error("the announcement changed an object that others may read")
	}
}

func TestAnnouncementWaitsForThePodItself(t *testing.T) {
	store := newStore()
	a := newAddresses(store)
	// A pod of the same name that is gone from the node, but not yet from the store.
	if err := store.Add(pod("old", "10.0.0.9")); err != nil {
		t.Fatal(err)
	}
	answer := make(chan int)
	go func() { answer <- send(t.Context(), a, http.MethodPut, "new", "10.0.0.1") }()
	for known := false; !known; {
		a.mu.RLock()
		_, known = a.byUID["new"]
		a.mu.RUnlock()
	}
	select {
	case code := <-answer:
		t.Fatalf("PUT: answered %d before the pod was there", code)
	default:
	}
	// The pod arrives as the informer brings it.
	arrived, err := a.transform(pod("new"))
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Update(arrived); err != nil {
		t.Fatal(err)
	}
	if code := <-answer; code != http.StatusNoContent {
		t.Errorf("PUT: got status %d, want 204", code)
	}
	if uids := uidsWith(t, store, "10.0.0.1"); len(uids) != 1 || uids[0] != "new" {
		t.Errorf("pods with the address: got %v, want [new]", uids)
	}
}

func TestAnnouncementOfAnUnknownPodFails(t *testing.T) {
	a := newAddresses(newStore())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := send(ctx, a, http.MethodPut, "a", "10.0.0.1"); code != http.StatusServiceUnavailable {
		t.Errorf("PUT: got status %d, want 503", code)
	}
}

func TestAnnouncementThatIsNoAddressIsRefused(t *testing.T) {
	a := newAddresses(newStore())
	for _, body := range []string{"", "10.0.0.1/24", "10.0.0.1\n", strings.Repeat("1", 100)} {
		if code := send(t.Context(), a, http.MethodPut, "a", body); code != http.StatusBadRequest {
			t.Errorf("PUT of %q: got status %d, want 400", body, code)
		}
	}
}

func TestReportedAddressStands(t *testing.T) {
	store := newStore()
	a := newAddresses(store)
	if err := store.Add(pod("a", "10.0.0.2")); err != nil {
		t.Fatal(err)
	}
	if code := send(t.Context(), a, http.MethodPut, "a", "10.0.0.1"); code != http.StatusNoContent {
		t.Fatalf("PUT: got status %d, want 204", code)
	}
	if uids := uidsWith(t, store, "10.0.0.2"); len(uids) != 1 {
		t.Errorf("pods with the reported address: got %v, want [a]", uids)
	}
}

func TestWithdrawnAddressIsForgotten(t *testing.T) {
	store := newStore()
	a := newAddresses(store)
	if err := store.Add(pod("a")); err != nil {
		t.Fatal(err)
	}
	send(t.Context(), a, http.MethodPut, "a", "10.0.0.1")
	if code := send(t.Context(), a, http.MethodDelete, "a", ""); code != http.StatusNoContent {
		t.Fatalf("DELETE: got status %d, want 204", code)
	}
	obj, err := a.transform(pod("a"))
	if err != nil {
		t.Fatal(err)
	}
	if ips := obj.(*corev1.Pod).Status.PodIPs; len(ips) != 0 {
		t.Errorf("address after DELETE: got %v, want none", ips)
	}
}
