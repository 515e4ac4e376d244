package enforcer

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// addresses holds the pod addresses that the CNI chain announced. The kubelet reports an address about a second after
// the pod has it; a policy that is found by address would not apply to the pod for that long.
type addresses struct {
	store cache.Indexer

	mu    sync.RWMutex
	byUID map[types.UID]string
}

func newAddresses(store cache.Indexer) *addresses {
	return &addresses{store: store, byUID: map[types.UID]string{}}
}

// transform prepares an object for the informer's store: a pod that has no reported address gets its announced one.
func (a *addresses) transform(obj any) (any, error) {
	if pod, ok := obj.(*corev1.Pod); ok {
		pod.SetManagedFields(nil)
		a.complete(pod)
	}
	return obj, nil
}

// announce records the address and reports whether the pod is in the store with an address, so that policies find it.
func (a *addresses) announce(key string, uid types.UID, address string) (bool, error) {
	a.mu.Lock()
	a.byUID[uid] = address
	a.mu.Unlock()

	obj, exists, err := a.store.GetByKey(key)
	if err != nil || !exists {
		return false, err
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.UID != uid {
		return false, nil
	}
	if len(pod.Status.PodIPs) > 0 {
		return true, nil
	}
	// A watch event between the read above and this write would be overwritten until the pod's next event: a pod that
	// is being started has several within a second, and each passes through transform.
	pod = pod.DeepCopy()
	a.complete(pod)
	return true, a.store.Update(pod)
}

// withdraw forgets the address of a pod that is gone.
func (a *addresses) withdraw(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byUID, uid)
}

func (a *addresses) complete(pod *corev1.Pod) {
	if len(pod.Status.PodIPs) > 0 {
		return
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	if address, ok := a.byUID[pod.UID]; ok {
		pod.Status.PodIP = address
		pod.Status.PodIPs = []corev1.PodIP{{IP: address}}
	}
}
