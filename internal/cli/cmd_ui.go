package cli

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/ui"
)

func newUICmd() *cobra.Command {
	c := common{streams: true}
	var listen string
	var noOpen bool
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show snapshots and sandboxes in the browser",
		Long: "Serves a page with the tree of snapshots and sandboxes on 127.0.0.1, prints its address and opens it in\n" +
			"the browser, until Ctrl-C. The address lets in one browser, once, within ten minutes; the session then\n" +
			"lasts for twelve hours. The page has the rights of this command at the daemon, and never receives its\n" +
			"token.",
		Example: "  forkd ui\n  forkd ui --no-open --listen 127.0.0.1:7777   # over ssh -t -L 7777:127.0.0.1:7777",
		Args:    usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			host, _, err := net.SplitHostPort(listen)
			if err != nil || !auth.IsLoopback(host) {
				return usageError{fmt.Errorf("--listen %q: want a loopback address and a port, such as 127.0.0.1:7777", listen)}
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				if _, err := cl.Version(ctx); err != nil { // report a wrong token here, not only in the browser
					return err
				}
				l, err := net.Listen("tcp", listen)
				if err != nil {
					return err
				}
				view := ui.New(ui.Config{Host: l.Addr().String(), Daemon: cl.Transport(), Name: c.where, Doctor: c.doctor()})
				if err := c.announce(cmd, view, !noOpen); err != nil {
					l.Close()
					return err
				}
				return serveUntil(ctx, l, view)
			})
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "loopback address and port to serve on; port 0: any free port")
	cmd.Flags().BoolVar(&noOpen, "no-open", false, "only print the address")
	c.register(cmd)
	return cmd
}

// doctor returns a function that checks this host as 'forkd doctor' does. It returns nil if the daemon
// is on another host.
func (c *common) doctor() func(context.Context) any {
	at, err := url.Parse(c.where)
	if err != nil || at.Scheme != "unix" && !auth.IsLoopback(at.Hostname()) {
		return nil
	}
	host := doctorHost(c.url, &tokenFlags{})
	return func(ctx context.Context) any { return host.Diagnose(ctx) }
}

// announce prints the address of the view, and opens it in the browser.
func (c *common) announce(cmd *cobra.Command, view *ui.Server, open bool) error {
	address, out := view.URL(), cmd.OutOrStdout()
	if c.json() {
		if err := writeJSON(out, map[string]string{"url": address, "daemon_url": c.where}); err != nil {
			return err
		}
	} else if _, err := printf(out, "%s\n", address); err != nil {
		return err
	}
	if !c.json() {
		printf(cmd.ErrOrStderr(), "forkd: this address shows %s to one browser; Ctrl-C ends it\n", c.where)
	}
	if open {
		if err := openBrowser(view.URL()); err != nil {
			printf(cmd.ErrOrStderr(), "forkd: no browser was opened (%s): open the address yourself\n", err)
		}
	}
	return nil
}

// serveUntil serves HTTP on l until ctx ends. It then closes all connections.
func serveUntil(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return ctx.Err()
}

// openBrowser opens an address in the user's browser. Other users can read the arguments of
// programs, so the browser gets the path of a file that only the user can read. This file leads the
// browser to the address.
func openBrowser(address string) error {
	name := "xdg-open"
	if runtime.GOOS == "darwin" {
		name = "open"
	}
	program, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	if runtime.GOOS == "linux" && os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return errors.New("no display")
	}
	cache, err := cachedir.Dir()
	if err != nil {
		return err
	}
	dir := filepath.Join(cache, "ui")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file := filepath.Join(dir, "open.html")
	_ = os.Remove(file) // removes a file of an earlier run; any other error also occurs when the file is created
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, `<!doctype html><meta charset="utf-8"><title>forkd</title><meta http-equiv="refresh" content="0; url=`+
		html.EscapeString(address)+`"><a href="`+html.EscapeString(address)+`">forkd</a>`)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	browser := exec.Command(program, file) // without a context, because the browser outlives this program
	if err := browser.Start(); err != nil {
		return err
	}
	go func() { _ = browser.Wait() }() // the program may run as long as the browser
	return nil
}
