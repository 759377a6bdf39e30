package v1_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// mute is a guest that accepts connections, but neither reads nor answers.
type mute struct {
	dialed chan struct{}
}

func (mute) Forked(context.Context, agentproto.Forked) (*agentproto.Unique, error) { return nil, nil }
func (m mute) Dial(context.Context, uint32) (net.Conn, error) {
	ours, _ := net.Pipe()
	m.dialed <- struct{}{}
	return ours, nil
}

// fork forks n sandboxes.
func fork(t *testing.T, r *apirig.Rig, n int) []client.Sandbox {
	t.Helper()
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	f, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: n})
	if err != nil {
		t.Fatal(err)
	}
	return f.Sandboxes
}

// Guests that do not answer delay only the requests to them.
func TestStuckCallsHoldNothingElse(t *testing.T) {
	silent := mute{make(chan struct{}, 10)}
	r := start(t, apirig.Options{Guest: silent, Limits: face.Limits{Calls: 4, PerSandbox: 2}})
	boxes := fork(t, r, 3)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	stick := func(id string) {
		go func() {
			r.Exec(ctx, id, client.ExecRequest{Args: []string{"true"}, TimeoutSecs: 3600})
			done <- struct{}{}
		}()
		<-silent.dialed
	}
	stick(boxes[0].ID)
	stick(boxes[0].ID)
	if _, err := r.Ping(ctx, boxes[0].ID); !client.IsStatus(err, http.StatusServiceUnavailable) {
		t.Errorf("a third call to one guest: %v", err)
	}
	stick(boxes[1].ID)
	if _, err := r.Ping(ctx, boxes[2].ID); !client.IsStatus(err, http.StatusServiceUnavailable) {
		t.Errorf("a fourth call: %v", err)
	}
	if _, err := r.Sandboxes(ctx); err != nil {
		t.Errorf("list: %v", err)
	}
	for _, s := range boxes {
		if err := r.Kill(ctx, s.ID); err != nil {
			t.Errorf("kill: %v", err)
		}
	}
	cancel()
	for range 3 {
		<-done
	}
}

// A transfer of a file is aborted if the guest stalls.
func TestATransferThatStandsStillEnds(t *testing.T) {
	silent := mute{make(chan struct{}, 10)}
	r := start(t, apirig.Options{Guest: silent, Limits: face.Limits{Stall: 20 * time.Millisecond}})
	id := fork(t, r, 1)[0].ID
	if _, err := r.ReadFile(t.Context(), id, "/a"); !client.IsStatus(err, http.StatusGatewayTimeout) {
		t.Errorf("read: %v", err)
	}
	if err := r.WriteFile(t.Context(), id, "/a", strings.NewReader("x")); !client.IsStatus(err,
		http.StatusGatewayTimeout) {
		t.Errorf("write: %v", err)
	}
}

// An upload is aborted if the client stalls.
func TestAnUploadThatStandsStillEnds(t *testing.T) {
	r := start(t, apirig.Options{Limits: face.Limits{Stall: 20 * time.Millisecond}})
	id := fork(t, r, 1)[0].ID
	body, w := io.Pipe()
	defer w.Close()
	go w.Write([]byte("some"))
	err := r.WriteFile(t.Context(), id, t.TempDir()+"/x", body)
	if err == nil {
		t.Error("an upload of which only a part came has succeeded")
	}
}

// stuckWriter is a writer whose first write closes w.begun. This write fails as soon as the test
// closes w.done.
type stuckWriter struct{ begun, done chan struct{} }

func (w stuckWriter) Write([]byte) (int, error) {
	close(w.begun)
	<-w.done
	return 0, io.ErrClosedPipe
}

// A client that does not read a command's output is disconnected, and its place becomes free.
func TestAStreamThatNobodyReadsEnds(t *testing.T) {
	r := start(t, apirig.Options{Limits: face.Limits{PerSandbox: 1, Stall: 20 * time.Millisecond}})
	id := fork(t, r, 1)[0].ID
	out := stuckWriter{begun: make(chan struct{}), done: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.ExecStream(t.Context(), id, client.ExecRequest{Args: []string{"yes"}, TimeoutSecs: 3600}, out, io.Discard)
	}()
	<-out.begun
	for {
		_, err := r.Ping(t.Context(), id)
		if err == nil {
			break
		}
		if !client.IsStatus(err, http.StatusServiceUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	close(out.done)
	<-ended
}

// The connection of a client without a token is closed after the answer.
func TestAConnectionWithoutTokenIsClosed(t *testing.T) {
	r := start(t, apirig.Options{})
	for request, status := range map[string]int{
		"GET /v1/sandboxes HTTP/1.1\r\nHost: x\r\n\r\n": http.StatusUnauthorized,
		// The body is missing.
		"POST /v1/forks HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n":                        http.StatusUnauthorized,
		"POST /v1/forks HTTP/1.1\r\nHost: x\r\nOrigin: http://evil\r\nContent-Length: 10\r\n\r\n": http.StatusForbidden,
		"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n":                         http.StatusMethodNotAllowed,
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(conn, request)
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != status || !resp.Close {
			t.Errorf("%q: %+v, %v", request, resp, err)
			continue
		}
		io.Copy(io.Discard, resp.Body)
		if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("%q: the connection is open: %v", request, err)
		}
	}
}
