package operator

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// pooled returns the Sandboxes of the pool that are not being deleted.
func (w *world) pooled() (list []v1alpha1.Sandbox) {
	w.t.Helper()
	var all v1alpha1.SandboxList
	if err := w.admin.List(w.t.Context(), &all, kube.InNamespace(w.namespace),
		kube.MatchingLabels{v1alpha1.PoolLabel: "warm"}); err != nil {
		w.t.Fatal(err)
	}
	for _, s := range all.Items {
		if s.DeletionTimestamp.IsZero() {
			list = append(list, s)
		}
	}
	return list
}

// A pool keeps its number of Sandboxes when they are claimed and when they end, and when the number
// changes. Claimed Sandboxes outlive the pool.
func TestPool(t *testing.T) {
	w := newWorld(t, "pool", "a", "b")
	w.start()
	w.snapshot()
	pool := &v1alpha1.SandboxPool{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "warm"},
		Spec: v1alpha1.SandboxPoolSpec{Replicas: 3, Template: v1alpha1.SandboxTemplate{Snapshot: "py"}}}
	w.create(pool)
	settles := func(what string, unclaimed, sandboxes int) {
		t.Helper()
		w.until(what, func() string {
			w.get("warm", pool)
			if pool.Status.Ready != int32(unclaimed) || pool.Status.Total != int32(unclaimed) || len(w.made()) != sandboxes {
				return fmt.Sprintf("%+v, %d sandboxes: want %d and %d", pool.Status, len(w.made()), unclaimed, sandboxes)
			}
			return ""
		})
	}
	scale := func(replicas int32) {
		t.Helper()
		w.until("scale", func() string {
			w.get("warm", pool)
			pool.Spec.Replicas = replicas
			if err := w.admin.Update(t.Context(), pool); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	settles("three", 3, 3)
	claimed := w.pooled()[0]
	if !metav1.IsControlledBy(&claimed, pool) {
		t.Errorf("%+v", claimed)
	}
	w.until("claim", func() string {
		w.get(claimed.Name, &claimed)
		claimed.Labels[v1alpha1.ClaimLabel] = "me"
		if err := w.admin.Update(t.Context(), &claimed); err != nil {
			return err.Error()
		}
		return ""
	})
	settles("three and a claimed one", 3, 4)
	w.until("the claimed one is free", func() string {
		if w.get(claimed.Name, &claimed); len(claimed.OwnerReferences) > 0 {
			return fmt.Sprintf("%+v", claimed.OwnerReferences)
		}
		return ""
	})
	// A client deletes a warm sandbox.
	for _, s := range w.pooled() {
		if s.Name != claimed.Name {
			if err := w.hosts[s.Status.Node].Kill(t.Context(), s.Status.ID); err != nil {
				t.Fatal(err)
			}
			w.gone(&s)
			break
		}
	}
	settles("the ended one is replaced", 3, 4)
	w.kill()
	scale(1)
	w.start()
	settles("one and a claimed one", 1, 2)
	scale(2)
	settles("two and a claimed one", 2, 3)
	w.delete(pool)
	w.gone(pool)
	w.until("only the claimed one is left", func() string {
		if all := w.made(); len(all) != 1 || all[claimed.Status.ID].ID == "" {
			return fmt.Sprintf("%+v", all)
		}
		return ""
	})
}
