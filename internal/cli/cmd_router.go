package cli

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/forkd/forkd/internal/cluster/placement"
	"github.com/forkd/forkd/internal/cluster/router"
	"github.com/forkd/forkd/internal/daemon"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/inbound"
)

// policies are the values of --policy.
var policies = map[string]placement.Policy{"spread": placement.Spread, "pack": placement.Pack}

func newRouterCmd() *cobra.Command {
	var cfg router.Config
	var bind, domain, policy, metricsBind string
	var files daemon.TLS
	cmd := &cobra.Command{
		Use:   "router",
		Short: "Serve the REST API of several daemons at one address",
		Long: "Passes requests on to the daemons of several hosts until SIGTERM or an interrupt, and chooses a host for new\n" +
			"sandboxes. Each daemon needs --node NAME. Several routers may serve the same hosts (docs/cluster.md).",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if cfg.File == "" {
				return usageError{fmt.Errorf("--nodes is missing: want the file with the list of nodes")}
			}
			known := false
			if cfg.Policy, known = policies[policy]; !known {
				return usageError{fmt.Errorf("--policy %q: want spread or pack", policy)}
			}
			if domain != "" {
				if cfg.Domain, err = inbound.ParseDomain(domain); err != nil {
					return usageError{fmt.Errorf("--proxy-domain %w", err)}
				}
			}
			host, _, err := net.SplitHostPort(bind)
			if err != nil {
				return usageError{fmt.Errorf("--bind %w", err)}
			}
			cfg.Public = !auth.IsLoopback(host)
			cfg.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			r, err := router.New(cfg)
			if err != nil {
				return err
			}
			ctx, cancel := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer cancel()
			go r.Run(ctx)
			servers, ctx := errgroup.WithContext(ctx)
			servers.Go(func() error { return daemon.Serve(ctx, bind, files, r, cfg.Log) })
			if metricsBind != "" {
				mux := http.NewServeMux()
				mux.Handle("GET /metrics", r.Metrics())
				servers.Go(func() error { return daemon.Serve(ctx, metricsBind, files, mux, cfg.Log) })
			}
			return servers.Wait()
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.File, "nodes", "", "JSON file with the list of nodes; changes apply within seconds")
	f.StringVar(&bind, "bind", "127.0.0.1:8889", "TCP address")
	f.StringVar(&files.Cert, "tls-cert", "",
		"certificate of --bind, in PEM with its intermediate certificates; changes apply at once")
	f.StringVar(&files.Key, "tls-key", "", "private key of --tls-cert, in PEM")
	f.StringVar(&metricsBind, "metrics-bind", "",
		"TCP address that serves /metrics for Prometheus, without a token, and over TLS if --tls-cert is given; default: none")
	f.StringVar(&domain, "proxy-domain", "", "the --proxy-domain of the daemons, if they have one")
	f.StringVar(&policy, "policy", "spread",
		"host for a new sandbox if several have its snapshot: spread (low load first) or pack (high load first)")
	return cmd
}
