// Package netclient is the daemon's side of forkd-net. It starts the process, finds it again after
// a restart of the daemon, restarts it when it has exited, and connects sandboxes to it.
//
// Its callers decide the policies, and forkd-net parses the frames.
//
// A frame socket carries the Ethernet frames of one VM: one end belongs to the VM, and the other
// end to forkd-net. A hold names hosts. Requests of a sandbox to these hosts are held if they may
// change something, until a release ends the hold.
//
// A fork does not wait for forkd-net. The VM accepts its end of the frame socket at once, and its
// guest may send frames. The frames wait in the socket until forkd-net has the sandbox's policy, so
// no frame bypasses the policy.
//
// When forkd-net is replaced, every sandbox receives a new frame socket and a new network stack.
// The replacement resets the sandbox's connections, and has no other effect on the sandbox. The
// forkd-net process has a directory with these files:
//
//	control.sock   its listening control socket
//	net.pid        process id and start time, to find it again
package netclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/jail/violation"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// Name is the name of the forkd-net program. It is also used in messages.
const Name = "forkd-net"

// Files in the process's directory.
const (
	socketFile = "control.sock"
	recordFile = "net.pid"
)

// Config configures a Client.
type Config struct {
	Bin       string           // path of the forkd-net program
	Authority string           // path of the file with the CA for secrets; the file is made when first needed
	Dir       string           // directory of the process, made by New; short enough for a unix socket's address
	Resolvers []netip.AddrPort // DNS servers; empty: the servers in /etc/resolv.conf, which is watched for changes
	Proxy     Proxy            // proxy for outgoing TCP connections
	FlowLog   string           // file that gets a line for each connection; empty: no flow log
	Jail      *jail.Starter
	Cgroups   *cgroup.Tree // makes forkd-net's own cgroup; nil: no limits
	Log       *slog.Logger

	patience time.Duration // answerTimeout, except in tests
	retry    time.Duration // firstRetry, except in tests
}

// ErrDown means that forkd-net is not running at the moment, and is being restarted.
var ErrDown = errors.New("forkd-net is being started again")

// Client connects sandboxes to forkd-net. Its methods may be called concurrently. A nil Client
// connects no sandboxes: its Join returns a nil Link, which does nothing.
type Client struct {
	cfg       Config
	restarts  atomic.Uint64
	quit      context.Context
	stop      context.CancelFunc
	done      sync.WaitGroup
	authority keptAuthority

	mu    sync.Mutex
	conn  *conn // nil while forkd-net is not running
	links map[string]*Link
	// +checklocks:mu
	host netproto.Config // the settings that were last sent to forkd-net
	// +checklocks:mu
	flows *os.File // the flow log; nil: none
}

// New finds the forkd-net of an earlier daemon. If there is none, New starts forkd-net in the
// background.
func New(cfg Config) (*Client, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of forkd-net: %w", err)
	}
	if cfg.patience == 0 {
		cfg.patience = answerTimeout
	}
	if cfg.retry == 0 {
		cfg.retry = firstRetry
	}
	c := &Client{cfg: cfg, links: make(map[string]*Link),
		host: hostConfig(cfg.Resolvers, cfg.Proxy, netproto.Config{})}
	if err := c.openFlowLog(); err != nil {
		return nil, err
	}
	c.quit, c.stop = context.WithCancel(context.Background())
	found, err := c.find()
	// ErrNotExist and ESRCH mean that no forkd-net is running
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
		cfg.Log.Info("the forkd-net of an earlier daemon is not used", "reason", err)
	}
	if found != nil {
		c.use(found)
	}
	c.done.Go(func() { c.run(found) })
	c.done.Go(c.followHost)
	return c, nil
}

// Delays before forkd-net is started again if it keeps exiting.
const (
	firstDelay = 100 * time.Millisecond
	lastDelay  = 30 * time.Second
	stableTime = 10 * time.Second // if forkd-net has run for this long, the next restart waits only firstDelay
)

// run keeps forkd-net running. If current is not nil, it is a process that already runs.
func (c *Client) run(current *conn) {
	delay := firstDelay
	for {
		began := time.Now()
		if current == nil {
			var err error
			if current, err = c.start(); err != nil {
				c.cfg.Log.Error("sandboxes have no network", "error", err, "next_try", delay)
			} else {
				c.use(current)
			}
		}
		if current != nil {
			select {
			case <-c.quit.Done():
				return
			case <-current.lost:
			}
			c.drop(current)
			c.restarts.Add(1)
			c.cfg.Log.Error("forkd-net has ended and is started again: connections of sandboxes are reset",
				"last_words", current.lastWords())
			current = nil
		}
		if time.Since(began) > stableTime {
			delay = firstDelay
		}
		select {
		case <-c.quit.Done():
			return
		case <-time.After(delay):
		}
		delay = min(2*delay, lastDelay)
	}
}

// c.use(n) makes n the process that c uses, and connects all sandboxes to n.
func (c *Client) use(n *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = n
	c.configureLocked()
	for _, l := range c.links {
		l.renewLocked()
	}
}

// drop ends the use of the process n, and kills the process if it still runs.
func (c *Client) drop(n *conn) {
	c.mu.Lock()
	c.conn = nil
	c.mu.Unlock()
	if err := n.end(); err != nil {
		c.cfg.Log.Error("end forkd-net", "error", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.links {
		if l.conn == n {
			closeFormer(l.former, l.sent)
			l.sent = -1
		}
	}
}

// Restarts returns how many times forkd-net was restarted after it had exited by itself.
func (c *Client) Restarts() uint64 {
	if c == nil {
		return 0
	}
	return c.restarts.Load()
}

// PID returns the process id of forkd-net. It is 0 if there is no process.
func (c *Client) PID() int {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return 0
	}
	return c.conn.proc.PID()
}

// Totals returns the sum of all sandboxes' counters since forkd-net was started.
func (c *Client) Totals(ctx context.Context) (netproto.Stats, error) { return c.stats(ctx, "") }

func (c *Client) stats(ctx context.Context, id string) (s netproto.Stats, err error) {
	if c == nil {
		return s, ErrDown
	}
	err = c.ask(ctx, netproto.KindStats, id, &s)
	return s, err
}

// ask sends a request about one sandbox, and parses the answer into result.
func (c *Client) ask(ctx context.Context, kind netproto.Kind, id string, result parser) error {
	c.mu.Lock()
	n := c.conn
	c.mu.Unlock()
	if n == nil {
		return ErrDown
	}
	return n.call(ctx, kind, &netproto.ID{ID: id}, result)
}

// Forget removes from forkd-net the sandboxes of an earlier daemon that this daemon has not
// adopted.
func (c *Client) Forget() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return
	}
	for id := range c.conn.attached {
		if c.links[id] == nil {
			c.conn.post(netproto.KindDetach, &netproto.ID{ID: id}, nil, c.complain(id))
		}
	}
	c.conn.attached = nil
}

// complain returns a function that logs the error of a request for which no caller waits.
func (c *Client) complain(id string) func([]byte, error) {
	return func(_ []byte, err error) {
		// ErrDown needs no message, because the restart repeats the request.
		if err != nil && !errors.Is(err, ErrDown) {
			c.cfg.Log.Error("sandbox has no network", "sandbox", id, "error", err)
		}
	}
}

// Close stops managing forkd-net. The process continues while there are sandboxes, and then exits.
func (c *Client) Close() {
	if c == nil {
		return
	}
	c.stop()
	c.done.Wait()
	c.mu.Lock()
	n, needed, flows := c.conn, len(c.links) > 0, c.flows
	c.conn, c.flows = nil, nil
	for _, l := range c.links {
		l.dropSentLocked()
	}
	c.mu.Unlock()
	if n != nil && needed {
		n.leave()
	} else if n != nil {
		if err := n.end(); err != nil {
			c.cfg.Log.Error("end forkd-net", "error", err)
		}
	}
	if flows != nil {
		_ = flows.Close()
	}
}

// lastWords says why a forkd-net has exited. If the kernel killed the process for its memory usage,
// or the jail refused a system call, lastWords says so. In all other cases, it quotes the end of
// the standard error, for example a panic.
func (n *conn) lastWords() string {
	select {
	case <-n.ended:
	default:
		return "it has not ended yet"
	}
	said := n.proc.Said()
	if n.killed != "" {
		return n.killed
	}
	if said == "" {
		return "none"
	}
	if call := violation.Call(said); call != "" {
		return "its jail forbids the system call " + call
	}
	const shown = 2000 // bytes
	return said[max(0, len(said)-shown):]
}
