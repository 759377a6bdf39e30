package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// Text that a guest may have chosen is escaped before it is printed on a terminal.
func TestPrintEvent(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.Local)
	for _, c := range []struct {
		e    client.Event
		want string
	}{
		{client.Event{Time: at, Type: "sandbox.exited", SandboxID: "sb-a", SnapshotTag: "p", Reason: "panic",
			Detail: "a\x1b[2Jb"},
			"2030-01-02 03:04:05  sandbox.exited      sb-a (p)  panic  a�[2Jb\n"},
		{client.Event{Time: at, Type: "snapshot.created", SnapshotTag: "p"}, "2030-01-02 03:04:05  snapshot.created    p\n"},
	} {
		var out strings.Builder
		if err := printEvent(&out, &c.e); err != nil || out.String() != c.want {
			t.Errorf("%q, %v; want %q", out.String(), err, c.want)
		}
	}
}
