package operator

import (
	"bytes"
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	kube "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// nodesKey is the name of the router's list in the ConfigMap.
const nodesKey = "nodes.json"

// nodes writes the router's list of nodes.
type nodes struct {
	kube.Client
	direct kube.Reader
	fleet  *fleet
	cfg    *Config
}

// entry is a node in the router's list; see docs/cluster.md.
type entry struct {
	Name      string `json:"name"`
	URL       string `json:"url"`
	TokenFile string `json:"token_file,omitempty"`
	Cordoned  bool   `json:"cordoned,omitempty"`
}

func (n *nodes) setup(mgr ctrl.Manager) error {
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, kube.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: kube.ObjectKey{Namespace: n.cfg.Namespace, Name: n.cfg.ConfigMap}}}
	})
	return ctrl.NewControllerManagedBy(mgr).Named("nodes").
		Watches(&corev1.Pod{}, all).Watches(&corev1.Node{}, all).Complete(n)
}

// Reconcile implements reconcile.Reconciler.
func (n *nodes) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	again := reconcile.Result{RequeueAfter: 12 * n.cfg.Interval} // in case someone else changes the ConfigMap
	list, err := n.fleet.daemons(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if len(list) == 0 {
		return again, nil // the router accepts no empty list, and the last nodes may come back
	}
	entries := make([]entry, len(list))
	for i, d := range list {
		entries[i] = entry{Name: d.node, URL: d.url, TokenFile: n.cfg.RouterTokenFile, Cordoned: d.cordoned}
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetIndent("", "  ")
	if err := enc.Encode(map[string][]entry{"nodes": entries}); err != nil {
		return reconcile.Result{}, err
	}
	// The ConfigMap is not cached, because the operator may read only this one.
	var config corev1.ConfigMap
	err = n.direct.Get(ctx, req.NamespacedName, &config)
	switch {
	case apierrors.IsNotFound(err):
		config.ObjectMeta = metav1.ObjectMeta{Namespace: req.Namespace, Name: req.Name}
		config.Data = map[string]string{nodesKey: text.String()}
		return again, n.Create(ctx, &config)
	case err != nil:
		return reconcile.Result{}, err
	case config.Data[nodesKey] == text.String():
		return again, nil
	}
	if config.Data == nil {
		config.Data = map[string]string{}
	}
	config.Data[nodesKey] = text.String()
	return again, n.Update(ctx, &config)
}
