package v1_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// liar is a guest whose agent gives the same answer to every request.
type liar struct{ answer string }

func (liar) Forked(context.Context, agentproto.Forked) (*agentproto.Unique, error) { return nil, nil }

func (g liar) Dial(context.Context, uint32) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		if req, err := http.ReadRequest(bufio.NewReader(theirs)); err == nil {
			_, _ = io.Copy(io.Discard, req.Body)
			_, _ = fmt.Fprintf(theirs, "HTTP/1.1 200 x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
				len(g.answer), g.answer)
		}
	}()
	return ours, nil
}

// A guest's answer counts against the shared memory by its decoded size, because a few bytes of
// JSON can become megabytes.
func TestDecodedAnswersAreCounted(t *testing.T) {
	listing := func(n int) string { return `{"entries":[` + strings.Repeat("{},", n-1) + "{}]}" }
	processes := func(n int) string { return `{"processes":[` + strings.Repeat("{},", n-1) + "{}]}" }
	for _, c := range []struct {
		name, answer, path string
		memory, want       int
	}{
		{"a listing", listing(1000), "/files/list?path=/", 8 << 20, http.StatusOK},
		{"a listing beyond what is shared", listing(19_000), "/files/list?path=/", 8 << 20, http.StatusServiceUnavailable},
		{"the same with memory for it", listing(19_000), "/files/list?path=/", 64 << 20, http.StatusOK},
		{"a listing that no agent gives", listing(21_000), "/files/list?path=/", 64 << 20, http.StatusBadGateway},
		{"processes beyond what is shared", processes(19_000), "/processes", 8 << 20, http.StatusServiceUnavailable},
		{"processes that no agent has", processes(21_000), "/processes", 64 << 20, http.StatusBadGateway},
		{"a description of a MiB", `{"entry":{"name":"` + strings.Repeat("x", 1<<20) + `"}}`, "/files/stat?path=/", 64 << 20,
			http.StatusBadGateway},
	} {
		o := apirig.Options{Guest: liar{c.answer}}
		o.Limits.Memory = c.memory
		r := start(t, o)
		if _, err := r.Bake(t.Context(), r.Parent); err != nil {
			t.Fatal(err)
		}
		forked, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(requestOf(t, r.URL+"/v1/sandboxes/"+forked.Sandboxes[0].ID+c.path))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.want {
			t.Errorf("%s: %d, want %d: %.200s, %v", c.name, resp.StatusCode, c.want, answer, err)
		}
	}
}
