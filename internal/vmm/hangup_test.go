package vmm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// If the daemon exits, no error is logged, even if the daemon has not read an answer. If a
// connection breaks for another reason, the error is logged.
func TestDaemonsThatHangUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := ctlsock.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	for name, ask := range map[string]func(*ctlsock.Conn) error{
		"at once":             func(*ctlsock.Conn) error { return nil },
		"without its answers": func(d *ctlsock.Conn) error { return d.Send(vmmproto.KindStats, nil) },
	} {
		daemon, err := ctlsock.Dial(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(ask(daemon), daemon.Close()); err != nil {
			t.Fatal(err)
		}
		conn, err := ctlsock.Accept(listener)
		if err != nil {
			t.Fatal(err)
		}
		if err := (&server{}).serve(conn); !hungUp(err) {
			t.Errorf("%s: %v", name, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	if hungUp(os.ErrInvalid) {
		t.Error("another error")
	}
}
