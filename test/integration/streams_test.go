package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/vmmclient"
)

// loopback is a program that has both ends of a TCP connection in the guest. It sends a counter
// back and forth, and writes the counter to /root/count. It exits when the connection breaks, or
// when it receives a wrong number.
const loopback = `
import os, socket, threading, time
server = socket.create_server(('127.0.0.1', 0))
ask = socket.create_connection(server.getsockname())
answer, _ = server.accept()
def serve():
    for line in answer.makefile('r'):
        answer.sendall(line.encode())
threading.Thread(target=serve, daemon=True).start()
replies = ask.makefile('r')
n = 0
while True:
    ask.sendall(b'%d\n' % n)
    assert replies.readline() == '%d\n' % n
    with open('/root/count.new', 'w') as f:
        f.write(str(n))
    os.rename('/root/count.new', '/root/count')
    n += 1
    time.sleep(0.1)
`

// counting is a program that prints a number every 0.2 s and never exits. A shell loop would start
// a process for each number, which is too much work for an emulated guest.
const counting = `
import time
counted = 0
while True:
    print(counted, flush=True)
    counted += 1
    time.sleep(0.2)
`

// counterStream collects the output of counting, as it arrives on the host.
type counterStream struct {
	mu     sync.Mutex
	output bytes.Buffer
	stop   bool
	done   chan error // receives the error at the end of the stream; has a buffer of one
}

var errEnough = errors.New("enough")

// count starts the program counting in a sandbox. It connects to the agent through the VMM's
// socket, like the daemon.
func (d *daemon) count(ctx context.Context, id string) *counterStream {
	c := &counterStream{done: make(chan error, 1)}
	guest := agentclient.New(agentclient.DialUnix(filepath.Join(d.run, "vm", id, vmmclient.VsockSocket)))
	go func() {
		_, err := guest.ExecStream(ctx, agentclient.ExecRequest{Args: []string{"python3", "-c", counting}},
			func(_ agentclient.Stream, p []byte) error {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.output.Write(p)
				if c.stop {
					return errEnough
				}
				return nil
			})
		c.done <- err
	}()
	return c
}

// at(t) returns how many numbers have arrived. It checks that they count up from 0 without gaps.
func (c *counterStream) at(t *testing.T) int {
	t.Helper()
	select {
	case err := <-c.done:
		t.Fatalf("the stream of the source ended: %v", err)
	default:
	}
	c.mu.Lock()
	lines := strings.Split(c.output.String(), "\n")
	c.mu.Unlock()
	lines = lines[:len(lines)-1] // the last line may be incomplete
	for i, l := range lines {
		if l != strconv.Itoa(i) {
			t.Fatalf("line %d is %q", i, l)
		}
	}
	return len(lines)
}

// goesOn waits until the stream has delivered two more numbers.
func (c *counterStream) goesOn(t *testing.T) {
	t.Helper()
	from := c.at(t)
	eventually(t, quietLimit, func() error {
		if n := c.at(t); n < from+2 {
			return fmt.Errorf("%d numbers have come, %d before", n, from)
		}
		return nil
	})
}

// end stops the stream and the process.
func (c *counterStream) end(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	c.stop = true
	c.mu.Unlock()
	if err := <-c.done; !errors.Is(err, errEnough) {
		t.Errorf("the stream ended with %v", err)
	}
}

// loopbackGoesOn waits until the program loopback has increased its count.
func (d *daemon) loopbackGoesOn(t *testing.T, id string) {
	t.Helper()
	d.sh(t, id, `from=$(cat /root/count); while [ $(cat /root/count) = $from ]; do kill -0 $(cat /root/pid) || exit 1; sleep 0.1; done`)
}

// TestBranchKeepsStreams branches a sandbox that has a stream to the host, a request in progress,
// and a TCP connection inside the guest. The source keeps all three. A child has the TCP
// connection, and does not answer the clients of its source.
func TestBranchKeepsStreams(t *testing.T) {
	d := load(t).start(t, withPool(0))
	box := d.fork(t, 1)[0]
	if err := d.WriteFile(d.ctx(t, quietLimit), box.ID, "/root/loopback.py", strings.NewReader(loopback)); err != nil {
		t.Fatal(err)
	}
	d.sh(t, box.ID, "python3 /root/loopback.py >/root/log 2>&1 </dev/null & echo $! >/root/pid; while [ ! -e /root/count ]; do sleep 0.1; done")
	d.value(t, box.ID, "[asked := 0]")
	stream := d.count(d.ctx(t, bakeLimit), box.ID)
	for i, mode := range []string{"live", "diff", "full"} {
		stream.goesOn(t)
		ctx := d.ctx(t, bakeLimit)
		type answer struct {
			client.EvalResult
			err error
		}
		answers := make(chan answer, 1)
		go func() { // the request continues after the branch
			r, err := d.Eval(ctx, box.ID, client.EvalRequest{TimeoutSecs: 120, Code: `
import os, time
open('/root/asked', 'w').close()
while not os.path.exists('/root/go'):
    time.sleep(0.05)
os.remove('/root/asked')
os.remove('/root/go')
asked += 1
asked`})
			answers <- answer{r, err}
		}()
		d.sh(t, box.ID, "while [ ! -e /root/asked ]; do sleep 0.1; done")
		d.branchOf(t, box.ID, mode, mode)
		d.sh(t, box.ID, "touch /root/go")
		if a := <-answers; a.err != nil || a.Result == nil || *a.Result != fmt.Sprint(i+1) {
			t.Errorf("%s: the request that was under way: %+v", mode, a)
		}
		stream.goesOn(t)
		d.loopbackGoesOn(t, box.ID)

		child := d.forkOf(t, mode, 1)[0]
		d.loopbackGoesOn(t, child.ID)
		if got := d.value(t, child.ID, "asked"); got != fmt.Sprint(i) { // /root/go does not exist in the child
			t.Errorf("%s: the request that was under way did %s in a child, want %d", mode, got, i)
		}
		const find = `grep -l 'counted += [1]' /proc/[0-9]*/cmdline | wc -l`
		// The process is still running, although no one reads its output.
		if got := d.sh(t, child.ID, find); got != "1\n" {
			t.Errorf("%s: the command of the stream runs %q times in a child", mode, got)
		}
		d.kill(t, child)
		stream.goesOn(t)
	}
	stream.end(t)
	d.alive(t, box.ID)
	d.kill(t, box)
	d.removeBranches(t)
}
