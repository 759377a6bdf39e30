package build

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/proto/envdproto/process"
	"github.com/forkd/forkd/internal/proto/envdproto/process/processconnect"
)

// slow is an archive that fails, some time after a read has begun.
type slow struct {
	begun  chan struct{}
	failed *atomic.Bool
}

func (s slow) Read([]byte) (int, error) {
	close(s.begun)
	time.Sleep(100 * time.Millisecond)
	s.failed.Store(true)
	return 0, errors.New("the archive is damaged")
}

// hasty is an envd that reports the exit of a process while the process's stdin is being read.
type hasty struct {
	processconnect.UnimplementedProcessHandler
	begun chan struct{}
}

func (h hasty) Start(_ context.Context, _ *connect.Request[process.StartRequest],
	out *connect.ServerStream[process.StartResponse]) error {
	start := &process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: 7}}}
	err := out.Send(&process.StartResponse{Event: start})
	<-h.begun
	end := &process.ProcessEvent{Event: &process.ProcessEvent_End{End: &process.ProcessEvent_EndEvent{Exited: true}}}
	return errors.Join(err, out.Send(&process.StartResponse{Event: end}))
}

// A guest may report the exit of its tar while the daemon still reads the archive. Under the race
// detector, this test fails if unpack then reads the error of the archive without synchronization.
func TestUnpackInAGuestThatExitsEarly(t *testing.T) {
	archive := slow{make(chan struct{}), new(atomic.Bool)}
	mux := http.NewServeMux()
	mux.Handle(processconnect.NewProcessHandler(hasty{begun: archive.begun}))
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go server.Serve(l)
	defer server.Close()
	g := &guest{c: agentclient.New(func(ctx context.Context, _ uint32) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	})}
	if err := g.unpack(t.Context(), archive, "/x"); err != nil || archive.failed.Load() {
		t.Errorf("unpack: %v; the archive has failed: %v", err, archive.failed.Load())
	}
	time.Sleep(200 * time.Millisecond) // a channel would synchronize the accesses, and so hide the race
}

// After a filtered archive is closed, nothing changes the recorded links of the COPY any more. The
// next archive needs these links.
func TestAClosedArchiveIsNotRead(t *testing.T) {
	archive := slow{make(chan struct{}), new(atomic.Bool)}
	r := filtered(archive, "", dockerfile.Ignore{}, &links{}, ".")
	<-archive.begun
	if err := r.Close(); err != nil || !archive.failed.Load() {
		t.Errorf("Close: %v; it has waited for the reader: %v", err, archive.failed.Load())
	}
}
