package daemon

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

func TestDefaults(t *testing.T) {
	none := func(string) string { return "" }
	var root Config
	if err := root.Defaults(0, none); err != nil || root.StateDir != "/var/lib/forkd" || root.Socket != "/run/forkd/forkd.sock" {
		t.Errorf("root: %+v, %v", root, err)
	}
	env := map[string]string{"HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/user/7", "XDG_STATE_HOME": "relative"}
	var user Config
	err := user.Defaults(7, func(k string) string { return env[k] })
	if err != nil || user.StateDir != "/home/u/.local/state/forkd" || user.Socket != "/run/user/7/forkd/forkd.sock" || user.RAMDir != "/dev/shm/forkd-7" {
		t.Errorf("user: %+v, %v", user, err)
	}
	if err := new(Config).Defaults(7, none); err == nil {
		t.Error("a user without a home: accepted")
	}
	tcp := Config{Bind: "127.0.0.1:1", StateDir: "/s"}
	if err := tcp.Defaults(0, none); err != nil || tcp.Socket != "" || tcp.StateDir != "/s" {
		t.Errorf("tcp: %+v, %v", tcp, err)
	}
}

func TestListenUnixReplacesOnlyTheDead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "s")
	l, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(path); err == nil || !strings.Contains(err.Error(), "another daemon") {
		t.Errorf("a live socket was taken: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // as after SIGKILL
	l.Close()
	again, err := listenUnix(path)
	if err != nil {
		t.Fatalf("a dead socket was not replaced: %v", err)
	}
	again.Close()
}

func TestServeStopsInOrder(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	inside := make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(inside)
		stop() // the request in flight is finished all the same
		<-ctx.Done()
		w.WriteHeader(http.StatusNoContent)
	})
	done := make(chan error, 1)
	go func() { done <- serve(ctx, slog.New(slog.DiscardHandler), handler, []net.Listener{l}) }()
	resp, err := http.Get("http://" + l.Addr().String())
	if err != nil || resp.StatusCode != http.StatusNoContent {
		t.Fatalf("request during the stop: %v", err)
	}
	resp.Body.Close()
	<-inside
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
}
