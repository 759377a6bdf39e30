// Command forkd-operator runs forkd's operator for Kubernetes; see docs/cluster.md. It only reads
// flags and connects to the API server. Package operator does the rest.
package main

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/forkd/forkd/kube/operator"
)

func main() {
	// controller-runtime adds the flag --kubeconfig. Without it, the operator uses the service account
	// of its pod.
	cfg := configure(flag.CommandLine)
	flag.Parse()
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil)))
	if err := run(cfg); err != nil {
		fmt.Fprintln(os.Stderr, "forkd-operator:", err)
		os.Exit(1)
	}
}

// configure adds the operator's flags to f. The flags set the fields of the result.
func configure(f *flag.FlagSet) *operator.Config {
	cfg := &operator.Config{}
	f.StringVar(&cfg.Namespace, "namespace", "forkd", "namespace of the daemons")
	f.StringVar(&cfg.TokenFile, "token-file", "", "file with a token of the daemons, of the scope admin")
	f.DurationVar(&cfg.Interval, "interval", 5*time.Second, "time between two looks at a daemon or an object")
	f.StringVar(&cfg.ConfigMap, "config-map", "forkd-nodes", "ConfigMap that gets the router's list of nodes")
	f.StringVar(&cfg.RouterTokenFile, "router-token-file", "",
		"path of the router's own token in the router's container, for its list of nodes")
	f.StringVar(&cfg.RouterURL, "router-url", "", "address of the router, for the status of Sandboxes")
	f.BoolVar(&cfg.AgentSandbox, "agent-sandbox", false, "act on the resources of agent-sandbox")
	f.StringVar(&cfg.AgentSandboxBind, "agent-sandbox-bind", "",
		"HOST:PORT of agent-sandbox's router, such as 127.0.0.1:8080; default: none")
	f.StringVar(&cfg.AgentSandboxCert, "agent-sandbox-cert", "",
		"file with the certificate of agent-sandbox's router; only a loopback address needs none")
	f.StringVar(&cfg.AgentSandboxKey, "agent-sandbox-key", "", "file with the key of the certificate")
	f.BoolVar(&cfg.Elect, "elect", true, "take turns with other operators")
	f.StringVar(&cfg.HealthBind, "health-bind", "", "address of /healthz and /readyz; default: none")
	f.StringVar(&cfg.MetricsBind, "metrics-bind", "", "address of /metrics for Prometheus; default: none")
	return cfg
}

func run(cfg *operator.Config) error {
	if flag.NArg() > 0 {
		return fmt.Errorf("argument %q: want only flags", flag.Arg(0))
	}
	cluster, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := operator.New(cluster, *cfg)
	if err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}
