package agentclient

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

func TestVolumeRequests(t *testing.T) {
	v := agentproto.Volume{Slot: 1, Path: "/data", ReadOnly: true}
	lines := make(chan string, 1)
	reply := "{}\n"
	c := New(peer(func(conn net.Conn) {
		line, _ := bufio.NewReader(conn).ReadString('\n')
		lines <- line
		_, _ = io.WriteString(conn, reply)
	}))
	const volume = `"volume":{"slot":1,"path":"/data","read_only":true}}` + "\n"
	for op, f := range map[string]func() error{
		"mount":   func() error { return c.Mount(t.Context(), v) },
		"unmount": func() error { return c.Unmount(t.Context(), v) },
	} {
		reply = "{}\n"
		if err := f(); err != nil {
			t.Errorf("%s: %v", op, err)
		}
		if line, want := <-lines, `{"op":"`+op+`",`+volume; line != want {
			t.Errorf("%s, want %s", line, want)
		}
		reply = `{"error":"in use by \"sh\""}` + "\n"
		err := f()
		<-lines
		if refused := (*Error)(nil); !errors.As(err, &refused) || !strings.Contains(err.Error(), `in use by "sh"`) {
			t.Errorf("%s: %v", op, err)
		}
	}
}
