// Package operator acts on the Kubernetes resources of package v1alpha1. It also writes the list of
// nodes for `forkd router`.
//
// The operator uses the public API of the daemons and the API server, and keeps no state of its
// own: before it acts, it writes what it must remember into the status of an object. It changes
// only sandboxes and snapshots that it has made. It neither routes requests to sandboxes nor runs
// daemons: the router and a DaemonSet do this.
package operator

import (
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	kube "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	forkd "github.com/forkd/forkd/client"
	"github.com/forkd/forkd/kube/agentsandbox"
	"github.com/forkd/forkd/kube/api/v1alpha1"
)

// Config configures the operator.
type Config struct {
	Namespace string        // of the daemons' pods, the ConfigMap and the lease
	TokenFile string        // file with a token of the daemons, of the scope admin; empty: the daemons require none
	Interval  time.Duration // between two looks at a daemon or an object

	ConfigMap       string // name of the ConfigMap with the router's list
	RouterTokenFile string // path of the router's token in the router's container; empty: the router needs none
	RouterURL       string // address of the router for clients; empty: Sandboxes have no URL in their status

	AgentSandbox     bool   // act on the resources of agent-sandbox
	AgentSandboxBind string // address of agent-sandbox's router; empty: none
	AgentSandboxCert string // file with a certificate for this address; only a loopback address needs none
	AgentSandboxKey  string // file with the key of the certificate

	Elect       bool   // work only while this operator has the lease, which all operators share
	HealthBind  string // address of /healthz and /readyz; empty: none
	MetricsBind string // address of /metrics; empty: none
}

// New returns the operator. The caller starts it.
func New(cluster *rest.Config, cfg Config) (manager.Manager, error) {
	if cfg.Namespace == "" || cfg.ConfigMap == "" || cfg.Interval <= 0 {
		return nil, errors.New("want a namespace, the name of a ConfigMap, and an interval above 0")
	}
	if !cfg.AgentSandbox && cfg.AgentSandboxBind+cfg.AgentSandboxCert+cfg.AgentSandboxKey != "" {
		return nil, errors.New("agent-sandbox-bind, -cert and -key have an effect only with agent-sandbox")
	}
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), v1alpha1.AddToScheme(known)); err != nil {
		return nil, err
	}
	pods := cache.ByObject{Namespaces: map[string]cache.Config{cfg.Namespace: {}},
		Label: labels.SelectorFromSet(labels.Set{appLabel: appName})}
	metrics := metricsserver.Options{BindAddress: cfg.MetricsBind}
	if cfg.MetricsBind == "" {
		metrics.BindAddress = "0"
	}
	mgr, err := ctrl.NewManager(cluster, ctrl.Options{Scheme: known,
		Cache:          cache.Options{ByObject: map[kube.Object]cache.ByObject{&corev1.Pod{}: pods}},
		LeaderElection: cfg.Elect, LeaderElectionID: "forkd-operator", LeaderElectionNamespace: cfg.Namespace,
		LeaderElectionReleaseOnCancel: true, HealthProbeBindAddress: cfg.HealthBind, Metrics: metrics})
	if err != nil {
		return nil, err
	}
	f := &fleet{cached: mgr.GetClient(), direct: mgr.GetAPIReader(), namespace: cfg.Namespace, tokenFile: cfg.TokenFile,
		interval: cfg.Interval, clients: map[string]*forkd.Client{}, reports: map[string]*report{}}
	err = errors.Join(mgr.Add(f),
		(&nodes{Client: mgr.GetClient(), direct: mgr.GetAPIReader(), fleet: f, cfg: &cfg}).setup(mgr),
		(&snapshots{Client: mgr.GetClient(), fleet: f, cfg: &cfg}).setup(mgr),
		(&sandboxes{Client: mgr.GetClient(), fleet: f, cfg: &cfg}).setup(mgr),
		(&pools{Client: mgr.GetClient(), direct: mgr.GetAPIReader(), cfg: &cfg}).setup(mgr))
	if err == nil && cfg.AgentSandbox {
		err = agentsandbox.Add(mgr, agentsandbox.Config{Connect: f.connectTo, Interval: cfg.Interval,
			Bind: cfg.AgentSandboxBind, Cert: cfg.AgentSandboxCert, Key: cfg.AgentSandboxKey})
	}
	if err == nil && cfg.HealthBind != "" {
		err = errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping))
	}
	return mgr, err
}
