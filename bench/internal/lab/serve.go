package lab

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/metrics"
	"github.com/forkd/forkd/internal/daemon/once"
	v1 "github.com/forkd/forkd/internal/daemon/v1"
	"github.com/forkd/forkd/internal/host/tenancy"
	"github.com/forkd/forkd/internal/host/workspace"
)

// Serve serves the REST API of the manager on a unix socket, with an audit log and without tokens.
// It returns a client for the API. To the given cleanup stack, it adds functions that close the
// client and the server. These functions must run before the manager is closed.
//
// Server and client are in this process. So the CPU time that a program measures for this process
// includes both.
func (m *Manager) Serve(ctx context.Context, undo *cleanup.Stack) (*client.Client, error) {
	quiet := slog.New(slog.DiscardHandler)
	workspaces, err := workspace.Open(filepath.Join(m.dataDir, "workspaces"), m.Manager, quiet)
	if err != nil {
		return nil, err
	}
	answers, err := once.Open(filepath.Join(m.dataDir, "once"))
	if err != nil {
		return nil, err
	}
	log, err := audit.Open(filepath.Join(m.dataDir, "audit.log"))
	if err != nil {
		return nil, err
	}
	undo.Add(func() { log.Close() })
	counts := metrics.New("bench")
	shared := face.New(face.Config{Host: tenancy.New(m.Manager, workspaces, nil), Audit: log, Answers: answers,
		Counts: counts, Requests: counts.RequestDone, Stopping: ctx, Log: quiet})
	socket := filepath.Join(m.runDir, "api.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: v1.New(v1.Config{Face: shared, Metrics: counts.Handler(), Version: "bench"})}
	go func() { _ = server.Serve(listener) }()
	undo.Add(func() { server.Close() })
	c, err := client.New("unix://"+socket, "")
	if err != nil {
		return nil, err
	}
	undo.Add(c.Close)
	return c, nil
}
