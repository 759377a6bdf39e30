package agent

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

func TestForkedAppliesEverythingInOrder(t *testing.T) {
	id := &recorder{}
	c := serve(t, id)
	f := agentproto.Forked{Entropy: []byte("e"), RealtimeNanos: 5, Hostname: "h", Env: map[string]string{"FORKD_N": "9"}}
	if _, err := c.Forked(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if want := []string{"reseed e", "clock 5", "hostname h"}; !slices.Equal(id.calls, want) {
		t.Fatalf("calls = %q, want %q", id.calls, want)
	}
	r, err := c.Exec(t.Context(), agentclient.ExecRequest{Args: []string{"sh", "-c", "echo $FORKD_N"}})
	if err != nil || string(r.Stdout) != "9\n" {
		t.Fatalf("env of a later process: %q, %v", r.Stdout, err)
	}
}

func TestForkedFailsWithItsFirstFailure(t *testing.T) {
	for _, broken := range []string{"reseed e", "clock 0", "hostname h"} {
		c := serve(t, &recorder{fail: broken})
		_, err := c.Forked(t.Context(), agentproto.Forked{Entropy: []byte("e"), Hostname: "h"})
		if err == nil || !strings.Contains(err.Error(), broken) {
			t.Errorf("%s: err = %v", broken, err)
		}
	}
}

// hookFunc is an implementation of hooks that calls a function.
type hookFunc func() error

func (f hookFunc) Any() bool  { return true }
func (f hookFunc) Run() error { return f() }

func TestAFailedHookFailsTheFork(t *testing.T) {
	id := &recorder{}
	f := &forks{identity: id, env: discard{}, interps: discard{}, hooks: hookFunc(func() error {
		if !slices.Contains(id.calls, "hostname h") {
			t.Error("a hook runs before the guest has its name")
		}
		return errors.New("no licence left")
	})}
	p, err := (&agentproto.Forked{Entropy: []byte("e"), Hostname: "h"}).Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.handle(p[agentproto.LengthSize:]); err == nil || err.Error() != "no licence left" {
		t.Errorf("the fork's error is %v", err)
	}
}

func TestPrepareThenFlush(t *testing.T) {
	flushed := 0
	id := &recorder{}
	f := &forks{identity: id, interps: discard{}, flush: func() { flushed++ }}
	prepared, err := f.handle(agentproto.AppendPrepare(nil)[agentproto.LengthSize:])
	if !prepared || err != nil || flushed != 1 {
		t.Fatalf("prepared %v, flushed %d times, %v", prepared, flushed, err)
	}
	if want := []string{"rehearse"}; !slices.Equal(id.calls, want) {
		t.Errorf("calls = %q, want %q", id.calls, want)
	}
}

// keepQuiet ends when a connection arrives. If keepQuiet did not end, each sandbox forked from a
// guest that was saved during keepQuiet would first have to wait.
func TestAConnectionEndsSettling(t *testing.T) {
	dir := t.TempDir()
	open := unixSockets(dir)
	port, err := open.forks(agentproto.ForkPort)
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	if !port.undisturbed(0) {
		t.Error("somebody disturbed the guest")
	}
	client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(client)
	path := filepath.Join(dir, strconv.Itoa(agentproto.ForkPort))
	if err := unix.Connect(client, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if port.undisturbed(time.Hour) {
		t.Error("nobody disturbed the guest")
	}
}

// A message that is longer than usual gets another buffer, and an invalid message does not end the
// service.
func TestForkMessagesOfAllSizes(t *testing.T) {
	c := serve(t, nil)
	for _, n := range []int{1, usualMessage, 100 * usualMessage, agentproto.MaxForked} {
		_, err := c.Forked(t.Context(), agentproto.Forked{Env: map[string]string{"FORKD_LONG": strings.Repeat("x", n)}})
		if (err == nil) != (n < agentproto.MaxForked) {
			t.Errorf("%d bytes: %v", n, err)
		}
		if n == agentproto.MaxForked {
			break
		}
		r, err := c.Exec(t.Context(), agentclient.ExecRequest{Args: []string{"sh", "-c", "echo ${#FORKD_LONG}"}})
		if err != nil || string(r.Stdout) != strconv.Itoa(n)+"\n" {
			t.Errorf("%d bytes became %q, %v", n, r.Stdout, err)
		}
	}
}

func TestBrokenForkMessagesGetNoAnswer(t *testing.T) {
	dial := listen(t, nil)
	for _, p := range []string{"", "\x01\x00", "\xff\xff\xff\xff", "\x09\x00\x00\x00short"} {
		conn, err := dial(t.Context(), agentproto.ForkPort)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, p); err != nil {
			t.Fatal(err)
		}
		conn.(*net.UnixConn).CloseWrite()
		if got, err := io.ReadAll(conn); err != nil || len(got) > 0 {
			t.Errorf("%q is answered %q, %v", p, got, err)
		}
		conn.Close()
	}
	if _, err := agentclient.New(dial).Forked(t.Context(), agentproto.Forked{Hostname: "h"}); err != nil {
		t.Error(err)
	}
}

type discard struct{}

func (discard) Merge(map[string]string)        {}
func (discard) Forked(map[string]string) error { return nil }
func (discard) Prepare() error                 { return nil }

func FuzzForks(f *testing.F) {
	p, err := (&agentproto.Forked{Entropy: []byte("e"), Hostname: "h", Env: map[string]string{"A": "1"}}).Append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p[agentproto.LengthSize:])
	f.Fuzz(func(t *testing.T, body []byte) {
		s := &forks{identity: &recorder{}, env: discard{}, interps: discard{}}
		if prepared, err := s.handle(body); prepared && err != nil {
			t.Error(err)
		}
	})
}
