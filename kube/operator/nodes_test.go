package operator

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/forkd/forkd/internal/cluster/router"
	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// list returns the text of the router's list, and the entries in it that belong to nodes of the
// test.
func (w *world) list() (text string, nodes map[string]entry) {
	w.t.Helper()
	var config corev1.ConfigMap
	err := w.admin.Get(w.t.Context(), kube.ObjectKey{Namespace: "forkd", Name: "forkd-nodes"}, &config)
	if kube.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	text = config.Data[nodesKey]
	var list struct{ Nodes []entry }
	if err := json.Unmarshal([]byte(text), &list); text != "" && err != nil {
		w.t.Fatal(err)
	}
	nodes = map[string]entry{}
	for _, e := range list.Nodes {
		if w.hosts[e.Name] != nil {
			nodes[e.Name] = e
		}
	}
	return text, nodes
}

// The router's list follows the pods of the daemons, and the router accepts it.
func TestNodes(t *testing.T) {
	w := newWorld(t, "nodes", "a", "b")
	w.start()
	a, b := w.hosts["nodes-a"], w.hosts["nodes-b"]
	shows := func(what string, want map[string]bool) {
		t.Helper()
		w.until(what, func() string {
			text, nodes := w.list()
			for name, cordoned := range want {
				e, ok := nodes[name]
				if !ok || e.Cordoned != cordoned || e.URL != w.hosts[name].proxy.URL || e.TokenFile != w.token {
					return "the list is " + text
				}
			}
			if len(nodes) != len(want) {
				return "the list is " + text
			}
			return ""
		})
	}
	shows("both nodes", map[string]bool{a.name: false, b.name: false})
	text, _ := w.list()
	file := filepath.Join(t.TempDir(), "nodes.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := router.New(router.Config{File: file, Public: true, Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Errorf("the router refuses the list: %v", err)
	}
	cordon := func(value bool) {
		t.Helper()
		var node corev1.Node
		if err := w.admin.Get(t.Context(), kube.ObjectKey{Name: a.name}, &node); err != nil {
			t.Fatal(err)
		}
		node.Spec.Unschedulable = value
		if err := w.admin.Update(t.Context(), &node); err != nil {
			t.Fatal(err)
		}
	}
	cordon(true)
	shows("a is cordoned", map[string]bool{a.name: true, b.name: false})
	cordon(false)
	shows("a is not cordoned", map[string]bool{a.name: false, b.name: false})
	w.removePod(b)
	shows("b has no pod", map[string]bool{a.name: false})
	w.addPod(b)
	shows("b has a pod again", map[string]bool{a.name: false, b.name: false})
	// Someone breaks the list.
	var config corev1.ConfigMap
	if err := w.admin.Get(t.Context(), kube.ObjectKey{Namespace: "forkd", Name: "forkd-nodes"}, &config); err != nil {
		t.Fatal(err)
	}
	config.Data[nodesKey] = `{"nodes": []}`
	if err := w.admin.Update(t.Context(), &config); err != nil {
		t.Fatal(err)
	}
	shows("the list is repaired", map[string]bool{a.name: false, b.name: false})
	// Without daemons the last list stays, because the router refuses an empty one.
	w.removePod(a)
	w.removePod(b)
	w.kill()
	w.start()
	s := &v1alpha1.Snapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "py"},
		Spec: v1alpha1.SnapshotSpec{Reference: "registry.example/py:1"}}
	w.create(s)
	w.until("the second operator works", func() string {
		w.get("py", s)
		return isReady(s.Status.Conditions, metav1.ConditionFalse, reasonNoNodes)
	})
	if text, nodes := w.list(); len(nodes) == 0 {
		t.Errorf("the list is %s", text)
	}
	w.delete(s)
	w.gone(s)
}
