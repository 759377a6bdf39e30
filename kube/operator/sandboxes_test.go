package operator

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	forkd "github.com/forkd/forkd/client"
	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// mode sets the operating mode of a Sandbox.
func (w *world) mode(name string, mode v1alpha1.Mode) {
	w.t.Helper()
	w.until("mode", func() string {
		var s v1alpha1.Sandbox
		w.get(name, &s)
		s.Spec.OperatingMode = mode
		if err := w.admin.Update(w.t.Context(), &s); err != nil {
			return err.Error()
		}
		return ""
	})
}

func (w *world) delete(o kube.Object) {
	w.t.Helper()
	if err := w.admin.Delete(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

// gone waits until the object no longer exists.
func (w *world) gone(o kube.Object) {
	w.t.Helper()
	w.until(o.GetName()+" is deleted", func() string {
		if w.get(o.GetName(), o) {
			return fmt.Sprintf("%+v", o)
		}
		return ""
	})
}

// A snapshot comes to all selected nodes. A Sandbox of it runs on one of them, is suspended and
// resumed, and is deleted. Neither the snapshot nor the sandboxes of other clients are touched.
func TestSandbox(t *testing.T) {
	w := newWorld(t, "life", "a", "b", "c")
	// The node c has another snapshot with the tag.
	c := w.hosts["life-c"]
	parent := c.Parent
	parent.Tag = "life.py"
	if _, err := c.Bake(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	foreign, err := c.Fork(t.Context(), forkd.ForkRequest{SnapshotTag: parent.Tag, N: 1})
	if err != nil {
		t.Fatal(err)
	}
	reference, digest := w.publish()
	s := &v1alpha1.Snapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "py"},
		Spec: v1alpha1.SnapshotSpec{Reference: reference, NodeSelector: map[string]string{"test": w.namespace}}}
	w.create(s)
	w.sandbox("one", func(s *v1alpha1.Sandbox) {
		s.Spec.Labels, s.Spec.TimeoutSeconds = map[string]string{"job": "7"}, 3600
		s.Spec.Network = &v1alpha1.Network{Mode: "none"}
	})
	w.start()
	w.until("snapshot", func() string {
		w.get("py", s)
		return isReady(s.Status.Conditions, metav1.ConditionFalse, reasonConflict)
	})
	w.until("two nodes", func() string {
		if w.get("py", s); s.Status.Ready != 2 || s.Status.Wanted != 3 {
			return fmt.Sprintf("%+v", s.Status)
		}
		return ""
	})
	if s.Status.Digest != digest || s.Status.Tag != "life.py" {
		t.Errorf("%+v, want the digest %s", s.Status, digest)
	}
	one := w.reaches("one", v1alpha1.Running)
	h := w.hosts[one.Status.Node]
	if h == nil || h == c || one.Status.URL != "http://router.example:8889/v1/sandboxes/"+one.Status.ID {
		t.Fatalf("%+v", one.Status)
	}
	made, err := h.Sandbox(t.Context(), one.Status.ID)
	if err != nil || made.Labels["job"] != "7" || made.Labels[nameLabel] != "one" || made.ExpiresAt == 0 ||
		made.Network != "none" {
		t.Errorf("%+v, %v", made, err)
	}
	w.mode("one", v1alpha1.ModeSuspended)
	w.reaches("one", v1alpha1.Suspended)
	if made, err := h.Sandbox(t.Context(), one.Status.ID); err != nil || made.State != "suspended" {
		t.Errorf("%+v, %v", made, err)
	}
	w.mode("one", v1alpha1.ModeRunning)
	if again := w.reaches("one", v1alpha1.Running); again.Status.ID != one.Status.ID {
		t.Errorf("resumed as %s", again.Status.ID)
	}
	// The Snapshot is deleted only after its sandbox.
	w.delete(s)
	w.until("snapshot in use", func() string {
		w.get("py", s)
		return isReady(s.Status.Conditions, metav1.ConditionFalse, reasonRefused)
	})
	w.delete(one)
	w.gone(one)
	w.gone(s)
	for _, h := range w.hosts {
		list, err := h.Snapshots(t.Context())
		has := slices.ContainsFunc(list, func(s forkd.Snapshot) bool { return s.Tag == "life.py" })
		if err != nil || has != (h == c) {
			t.Errorf("%s has %+v, %v", h.name, list, err)
		}
	}
	if len(w.made()) != 0 {
		t.Errorf("%+v are left", w.made())
	}
	if _, err := c.Sandbox(t.Context(), foreign.Sandboxes[0].ID); err != nil {
		t.Errorf("a foreign sandbox: %v", err)
	}
}

// The operator is killed before or after a daemon makes a sandbox, in both cases before the
// operator can write the id into the status. The next operator goes on with the same sandbox.
func TestKilledOperator(t *testing.T) {
	w := newWorld(t, "killed", "a", "b")
	w.elect = true
	w.start()
	w.snapshot()
	for _, when := range []string{"before", "after"} {
		for _, h := range w.hosts {
			h.set(func(h *host) {
				if h.sending, h.answered = func(*http.Request) { w.kill() }, nil; when == "after" {
					h.sending, h.answered = nil, w.kill
				}
			})
		}
		w.sandbox(when)
		w.until("the operator is killed", func() string {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.operator != nil {
				return "it still runs"
			}
			return ""
		})
		var s v1alpha1.Sandbox
		w.get(when, &s)
		if s.Status.Node == "" || s.Status.ID != "" {
			t.Errorf("%s: the killed operator has left %+v", when, s.Status)
		}
		made := len(w.made())
		for _, h := range w.hosts {
			h.set(func(h *host) { h.sending, h.answered = nil, nil })
		}
		w.start()
		again := w.reaches(when, v1alpha1.Running)
		all := w.made()
		if all[again.Status.ID].Labels[nameLabel] != when || again.Status.Node != s.Status.Node || len(all) != max(made, 1) {
			t.Errorf("%s: %+v, after %d there are %+v", when, again.Status, made, all)
		}
		w.delete(again)
		w.gone(again)
	}
	if all := w.made(); len(all) != 0 {
		t.Errorf("%+v are left", all)
	}
}

// While a daemon is away, the operator neither loses nor repeats its sandboxes, and says what it
// waits for.
func TestDaemonAway(t *testing.T) {
	w := newWorld(t, "away", "a", "b")
	w.start()
	w.snapshot()
	w.sandbox("one")
	w.sandbox("two")
	one, two := w.reaches("one", v1alpha1.Running), w.reaches("two", v1alpha1.Running)
	down := func(value bool) {
		for _, h := range w.hosts {
			h.set(func(h *host) { h.down = value })
		}
	}
	waits := func(s *v1alpha1.Sandbox, reason string) {
		t.Helper()
		w.until("the reason "+reason, func() string {
			w.get(s.Name, s)
			return isReady(s.Status.Conditions, metav1.ConditionFalse, reason)
		})
	}
	down(true)
	w.delete(one)
	waits(one, reasonUnreachable)
	waits(two, reasonUnreachable)
	if one.DeletionTimestamp.IsZero() || len(w.made()) != 2 || two.Status.Phase != v1alpha1.Running {
		t.Errorf("%+v, %+v, %+v", one, two.Status, w.made())
	}
	down(false)
	w.gone(one)
	w.until("two is back", func() string {
		w.get("two", two)
		return isReady(two.Status.Conditions, metav1.ConditionTrue, reasonReady)
	})
	if all := w.made(); len(all) != 1 || all[two.Status.ID].ID == "" {
		t.Errorf("%+v", all)
	}
	// The address of the pod now belongs to another daemon, which does not know the sandbox. The
	// operator must not believe that the sandbox is gone.
	h := w.hosts[two.Status.Node]
	other := w.hosts["away-a"]
	if other == h {
		other = w.hosts["away-b"]
	}
	h.proxy, other.proxy = other.proxy, h.proxy
	w.removePod(h)
	w.removePod(other)
	w.addPod(h)
	w.addPod(other)
	w.until("the wrong daemon is noticed", func() string {
		w.get("two", two)
		if c := two.Status.Conditions[0]; c.Reason != reasonUnreachable || !strings.Contains(c.Message, other.name) {
			return fmt.Sprintf("%+v", two.Status)
		}
		return ""
	})
	if two.Status.Phase != v1alpha1.Running {
		t.Errorf("%+v", two.Status)
	}
	w.delete(two)
	waits(two, reasonUnreachable)
	// The node leaves the cluster, and its sandboxes with it.
	w.removePod(h)
	w.delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: h.name}})
	w.gone(two)
	h.proxy, other.proxy = other.proxy, h.proxy
}

// A node that answers no request to suspend does not keep the operator from the Sandboxes of other
// nodes, even if more of its Sandboxes wait than the operator has workers.
func TestSlowNode(t *testing.T) {
	w := newWorld(t, "slow", "a", "b")
	for name := range w.hosts {
		w.until("label of "+name, func() string {
			var node corev1.Node
			err := w.admin.Get(w.t.Context(), kube.ObjectKey{Name: name}, &node)
			if err == nil {
				node.Labels["host"] = name
				err = w.admin.Update(w.t.Context(), &node)
			}
			if err != nil {
				return err.Error()
			}
			return ""
		})
	}
	w.start()
	w.snapshot()
	at := func(node string) func(*v1alpha1.Sandbox) {
		return func(s *v1alpha1.Sandbox) { s.Spec.NodeSelector = map[string]string{"host": node} }
	}
	const many = 8*maxAtNode + 1
	for i := range many {
		w.sandbox(fmt.Sprint("a", i), at("slow-a"))
	}
	for i := range many {
		w.reaches(fmt.Sprint("a", i), v1alpha1.Running)
	}
	w.hosts["slow-a"].set(func(h *host) { h.holds = "/suspend" })
	for i := range many {
		w.mode(fmt.Sprint("a", i), v1alpha1.ModeSuspended)
	}
	w.sandbox("b", at("slow-b"))
	w.reaches("b", v1alpha1.Running)
}

// If a client deletes a sandbox, its Sandbox ends. The operator makes no other sandbox for it.
func TestEnded(t *testing.T) {
	w := newWorld(t, "ended", "a")
	w.start()
	w.snapshot()
	w.sandbox("one")
	one := w.reaches("one", v1alpha1.Running)
	if err := w.hosts["ended-a"].Kill(t.Context(), one.Status.ID); err != nil {
		t.Fatal(err)
	}
	w.reaches("one", v1alpha1.Ended)
	w.mode("one", v1alpha1.ModeSuspended)
	time.Sleep(3 * 300 * time.Millisecond) // several intervals
	if len(w.made()) != 0 {
		t.Errorf("%+v", w.made())
	}
	w.delete(one)
	w.gone(one)
}

// The API server is killed and started again. The operator, or its successor, continues.
func TestAPIServerRestarts(t *testing.T) {
	w := newWorld(t, "api", "a")
	w.start()
	w.snapshot()
	w.sandbox("one")
	one := w.reaches("one", v1alpha1.Running)
	w.server.mu.Lock()
	w.stop()
	w.server.start(t)
	w.server.mu.Unlock()
	w.sandbox("two")
	two := w.reaches("two", v1alpha1.Running)
	if all := w.made(); len(all) != 2 || all[one.Status.ID].ID == "" || all[two.Status.ID].ID == "" {
		t.Errorf("%+v", all)
	}
	w.delete(one)
	w.gone(one)
}

// The API server refuses values that the operator does not know, and changes that it cannot make.
func TestUnknownValues(t *testing.T) {
	w := newWorld(t, "unknown")
	for text, spec := range map[string]map[string]any{
		"snapshot":        {},
		"operatingMode":   {"snapshot": "py", "operatingMode": "Paused"},
		"network.mode":    {"snapshot": "py", "network": map[string]any{"mode": "open"}},
		"kube-":           {"snapshot": "py", "labels": map[string]any{"kube-uid": "x"}},
		"timeoutSeconds":  {"snapshot": "py", "timeoutSeconds": int64(-1)},
		`unknown field "`: {"snapshot": "py", "colour": "blue"},
		"Too long":        {"snapshot": strings.Repeat("x", 64)},
	} {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "forkd.dev/v1alpha1", "kind": "Sandbox",
			"metadata": map[string]any{"namespace": w.namespace, "name": "x"}, "spec": spec}}
		if err := w.admin.Create(t.Context(), o); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v, want an error with %q", spec, err, text)
		}
	}
	for _, reference := range []string{"", "py:1", "ghcr.io/py", "ghcr.io/py@sha256:1", "https://ghcr.io/py:1",
		"ghcr.io/py:1 "} {
		s := &v1alpha1.Snapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "x"},
			Spec: v1alpha1.SnapshotSpec{Reference: reference}}
		if err := w.admin.Create(t.Context(), s); !apierrors.IsInvalid(err) {
			t.Errorf("%q: %v", reference, err)
		}
	}
	w.sandbox("one")
	for name, change := range map[string]func(*v1alpha1.SandboxSpec){
		"snapshot": func(s *v1alpha1.SandboxSpec) { s.Snapshot = "other" },
		"labels":   func(s *v1alpha1.SandboxSpec) { s.Labels = map[string]string{"a": "b"} },
		"network":  func(s *v1alpha1.SandboxSpec) { s.Network = &v1alpha1.Network{Mode: "public"} },
		"timeout":  func(s *v1alpha1.SandboxSpec) { s.TimeoutSeconds = 1 },
	} {
		var s v1alpha1.Sandbox
		w.get("one", &s)
		change(&s.Spec)
		err := w.admin.Update(t.Context(), &s)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "only operatingMode") {
			t.Errorf("a change of %s: %v", name, err)
		}
	}
	w.mode("one", v1alpha1.ModeSuspended)
}

// The operator's account has no right that the operator does not need.
func TestAccount(t *testing.T) {
	w := newWorld(t, "account")
	operator, err := kube.New(w.account(t), kube.Options{Scheme: w.admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"forkd", w.namespace, "kube-system"} {
		for _, list := range []kube.ObjectList{&corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.ServiceAccountList{}} {
			if err := operator.List(t.Context(), list, kube.InNamespace(namespace)); !apierrors.IsForbidden(err) {
				t.Errorf("list %T in %s: %v", list, namespace, err)
			}
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "x"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x"}}}}
		if err := operator.Create(t.Context(), pod); !apierrors.IsForbidden(err) {
			t.Errorf("create a pod in %s: %v", namespace, err)
		}
	}
	if err := operator.List(t.Context(), &corev1.PodList{}, kube.InNamespace("kube-system")); !apierrors.IsForbidden(err) {
		t.Errorf("list pods of kube-system: %v", err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	if err := operator.Create(t.Context(), node); !apierrors.IsForbidden(err) {
		t.Errorf("create a node: %v", err)
	}
}
