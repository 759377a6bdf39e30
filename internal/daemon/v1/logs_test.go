package v1_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/host/vmfake"
)

// consoles starts the API with a sandbox, and returns the sandbox's fake VM too.
func consoles(t *testing.T, limits face.Limits) (r *apirig.Rig, id string, guest *vmfake.VMM) {
	t.Helper()
	r = start(t, apirig.Options{Limits: limits})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	f, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	all := r.VMs.All()
	if len(all) != 1 {
		t.Fatalf("%d VMs", len(all))
	}
	return r, f.Sandboxes[0].ID, all[0]
}

func TestLogs(t *testing.T) {
	r, id, _ := consoles(t, face.Limits{})
	const all = "hello\nKernel panic - not syncing: x\nbye\n" // console output of every fake VM
	now := time.Now()
	for query, want := range map[client.LogsRequest]string{
		{}:              all,
		{Tail: "all"}:   all,
		{Tail: "3"}:     all,
		{Tail: "99"}:    all,
		{Tail: "1"}:     "bye\n",
		{Tail: "0"}:     "",
		{Since: "1h"}:   all,
		{Since: "0"}:    all,
		{Since: "1e10"}: "", // a time in the year 2286
		{Since: now.Add(-time.Hour).Format(time.RFC3339Nano)}: all,
		{Since: now.Add(time.Hour).Format(time.RFC3339)}:      "",
		{Since: "1h", Tail: "2"}:                              "Kernel panic - not syncing: x\nbye\n",
	} {
		logs, err := r.Logs(t.Context(), id, query)
		if err != nil {
			t.Errorf("%+v: %v", query, err)
			continue
		}
		if p, err := io.ReadAll(logs); err != nil || string(p) != want {
			t.Errorf("%+v: %q, %v; want %q", query, p, err, want)
		}
		logs.Close()
	}
	for _, bad := range []client.LogsRequest{{Tail: "-1"}, {Tail: "x"}, {Tail: "1.5"}, {Since: "yesterday"}, {Since: "-1"},
		{Since: "NaN"}, {Since: "1e99"}, {Since: "-5m"}} {
		if _, err := r.Logs(t.Context(), id, bad); !client.IsStatus(err, http.StatusBadRequest) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := r.Logs(t.Context(), "sb-none", client.LogsRequest{}); !client.IsNotFound(err) {
		t.Errorf("of no sandbox: %v", err)
	}
}

// With Follow, a log also contains new output, and ends when the sandbox ends.
func TestLogsAreFollowed(t *testing.T) {
	r, id, guest := consoles(t, face.Limits{Followers: 2})
	logs, err := r.Logs(t.Context(), id, client.LogsRequest{Follow: true, Tail: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	lines := bufio.NewReader(logs)
	expect := func(want string) {
		t.Helper()
		if line, err := lines.ReadString('\n'); err != nil || line != want {
			t.Fatalf("%q, %v; want %q", line, err, want)
		}
	}
	expect("bye\n")
	guest.Print("more\n")
	expect("more\n")
	if _, err := r.Logs(t.Context(), id, client.LogsRequest{}); !client.IsStatus(err, http.StatusServiceUnavailable) {
		t.Errorf("a second answer from one console, where one is allowed: %v", err)
	}
	guest.Print("the end\n")
	if err := r.Kill(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	expect("the end\n")
	if rest, err := io.ReadAll(lines); err != nil || len(rest) != 0 {
		t.Errorf("after the end of the sandbox: %q, %v", rest, err)
	}
}

// A client that reads slowly loses output, and a line of the log says so. Such a client delays no
// other client.
func TestLogsOfASlowReader(t *testing.T) {
	r, id, guest := consoles(t, face.Limits{Stall: 300 * time.Millisecond})
	logs, err := r.Logs(t.Context(), id, client.LogsRequest{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	flood := strings.Repeat(strings.Repeat("x", 63)+"\n", console.Size/64)
	told := bufio.NewScanner(logs)
	told.Scan()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for { // soon more output arrives between two reads than the buffer can hold
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				guest.Print(flood)
			}
		}
	}()
	for !strings.HasPrefix(told.Text(), "[forkd: ") && told.Scan() {
	}
	if !strings.HasSuffix(told.Text(), "are left out]") {
		t.Errorf("what was lost is not told: %q, %v", told.Text(), told.Err())
	}

	// A net.Pipe has no buffer for data that the client does not read.
	ours, theirs := net.Pipe()
	defer ours.Close()
	served := make(chan struct{})
	api := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer close(served)
		r.Server.Config.Handler.ServeHTTP(w, req)
	})}
	defer api.Close()
	go api.Serve(apirig.OneConn(theirs))
	if _, err := fmt.Fprintf(ours,
		"GET /v1/sandboxes/%s/logs?follow HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", id,
		apirig.Token); err != nil {
		t.Fatal(err)
	}
	<-served // the daemon has disconnected the client
}
