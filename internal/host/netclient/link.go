package netclient

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/linger"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// VM is the part of a VM that a Link uses.
type VM interface {
	// DialFrames connects a new frame socket to the VM, and returns the other end. It does not wait.
	DialFrames() (*os.File, error)
	// SetNet switches the VM to the newest frame socket from DialFrames. It may take some time.
	SetNet(ctx context.Context, network bool) error
	// Condemn kills the VM. A Link calls it if the VM holds memory of forkd-net.
	Condemn(why error)
}

// Link is the connection of one VM to forkd-net. It is made by Join or Adopt and lasts until Close.
// The methods of a nil Link do nothing.
type Link struct {
	c     *Client
	id    string
	vm    VM
	moved func() // called when the VM has another network stack; may be nil

	// Guarded by the client's lock.
	setting Setting
	conn    *conn    // the forkd-net that has the other end of the VM's frame socket; nil: no forkd-net has it
	pending *os.File // forkd-net's end of a new frame socket, until it is sent; nil: there is no new socket
	held    bool     // the VM uses the other end of the socket in pending

	// former has copies of forkd-net's ends of the VM's earlier frame sockets. A copy is kept until
	// the VM has read the data or has closed its own end, even if the forkd-net that had the end
	// was killed.
	former *linger.Set
	sent   int           // descriptor of a copy of the end that was sent to forkd-net; -1: none
	delay  time.Duration // time until the next attempt to give the VM a frame socket, after a failure
}

func (c *Client) newLink(id string, setting Setting, vm VM, moved func()) *Link {
	return &Link{c: c, id: id, vm: vm, moved: moved, setting: setting, former: &linger.Set{}, sent: -1,
		delay: c.cfg.retry}
}

// Join makes a Link for the VM of a sandbox, and connects a frame socket to the VM. Join does not
// wait. It also gives forkd-net no work, because that work would compete with the VM for the host's
// CPUs. Ready sends forkd-net its end of the socket. The caller must boot or restore the VM with a
// network, and then call Ready, before the sandbox is announced. An earlier Link with the same id
// ends, and needs no Close.
//
// If forkd-net is replaced, the VM gets another frame socket. If moved is not nil, the Link then
// calls it, because the new network stack does not know the guest's connections.
func (c *Client) Join(id string, setting Setting, vm VM, moved func()) (*Link, error) {
	if c == nil {
		return nil, nil
	}
	l := c.newLink(id, setting, vm, moved)
	c.mu.Lock()
	defer c.mu.Unlock()
	// The VM uses its newest frame socket, so an earlier Link must not connect another one now.
	// Therefore this Link replaces the earlier Link before the lock is released.
	var err error
	if l.pending, err = vm.DialFrames(); err != nil {
		return nil, err
	}
	c.putLocked(l)
	return l, nil
}

// Adopt joins the VM of a sandbox that an earlier daemon had joined. If forkd-net has not exited
// since then, the VM keeps its connections. The parameters are those of Join.
func (c *Client) Adopt(id string, setting Setting, vm VM, moved func()) *Link {
	if c == nil {
		return nil
	}
	l := c.newLink(id, setting, vm, moved)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(l)
	if c.conn != nil && c.conn.attached[id] {
		l.conn = c.conn
		// Send the setting again. The earlier daemon may have been killed after it wrote the
		// setting to the sandbox's record, and before it sent the setting to forkd-net.
		if setting.EndsTLS() {
			c.trustLocked(c.conn)
		}
		c.conn.post(netproto.KindSetPolicy, l.setPolicyLocked(), nil, c.complain(id))
		return l
	}
	l.renewLocked()
	return l
}

func (c *Client) putLocked(l *Link) {
	if earlier := c.links[l.id]; earlier != nil {
		earlier.dropPendingLocked()
		l.former, l.sent, earlier.sent = earlier.former, earlier.sent, -1
	}
	c.links[l.id] = l
}

// attachLocked sends the pending end of the frame socket to forkd-net. The caller must make sure
// that there is a pending end, and that forkd-net is running.
func (l *Link) attachLocked() {
	n := l.c.conn
	m := netproto.Attach(*l.setPolicyLocked())
	if l.setting.EndsTLS() {
		l.c.trustLocked(n)
	}
	complain, former, earlier := l.c.complain(l.id), l.former, l.sent
	l.sent = copyOf(l.pending)
	n.post(netproto.KindAttach, &m, l.pending, func(answer []byte, err error) {
		complain(answer, err)
		closeFormer(former, earlier) // forkd-net does not use the earlier end any more
		if refused, ok := errors.AsType[*netproto.Error](err); ok && refused.Code == netproto.CodeHeld {
			go l.vm.Condemn(refused)
		}
	})
	l.conn, l.pending, l.held = n, nil, false
}

// copyOf returns another descriptor of a file, or -1 if the process may open no more files.
func copyOf(f *os.File) int {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// closeFormer passes the descriptor fd to the set former, which closes it. The descriptor is a copy
// of an end that forkd-net no longer uses. If fd is -1, closeFormer does nothing.
func closeFormer(former *linger.Set, fd int) {
	if fd >= 0 {
		_ = former.Close(os.NewFile(uintptr(fd), "frame socket"), nil)
	}
}

// maxFormer is how many earlier frame sockets with unread data a VM may have open when it has
// confirmed that it uses a new one. A working VM has then closed all earlier ones.
const maxFormer = 1

// renewLocked connects the VM to the present forkd-net, if the VM was connected to an earlier one.
// If the VM does not use its new frame socket yet, Ready or handOver calls renewLocked again. Until
// then, forkd-net does not get the other end of the socket. So every VM that the next daemon finds
// attached to forkd-net uses its socket.
func (l *Link) renewLocked() {
	n := l.c.conn
	if n == nil || l.conn == n {
		return
	}
	if l.pending != nil {
		if l.held {
			l.attachLocked()
		}
		return
	}
	var err error
	if l.pending, err = l.vm.DialFrames(); err != nil {
		l.c.cfg.Log.Error("sandbox has no network", "sandbox", l.id, "error", err)
		l.retryLocked()
		return
	}
	l.held = false
	go l.handOver(n)
}

// handOver switches the VM to a new frame socket, whose other end is l.pending. The parameter n is
// the forkd-net for which the socket was made. If the VM refuses the socket or does not answer,
// handOver asks it again later.
func (l *Link) handOver(n *conn) {
	err := l.vm.SetNet(l.c.quit, true)
	if err != nil {
		l.c.cfg.Log.Warn("a sandbox could not be given another network", "sandbox", l.id, "error", err)
	}
	l.c.mu.Lock()
	current := l.c.links[l.id] == l
	switch {
	case !current: // l.pending is already closed
	case err != nil:
		l.dropPendingLocked()
		if l.c.conn != n {
			l.renewLocked()
		} else {
			l.retryLocked()
		}
	default:
		l.held, l.delay = true, l.c.cfg.retry
		if held := l.former.Held(); held > maxFormer {
			go l.vm.Condemn(&netproto.Error{Code: netproto.CodeHeld,
				Text: fmt.Sprintf("the VM holds %d earlier frame sockets, which it neither reads nor closes", held)})
		}
		l.renewLocked()
	}
	l.c.mu.Unlock()
	if current && err == nil && l.moved != nil {
		l.moved()
	}
}

// Delays between two attempts to give a VM another frame socket. Each is twice the previous delay.
const (
	firstRetry = 10 * time.Second
	lastRetry  = 10 * time.Minute
)

// retryLocked calls renewLocked later, if the link then still needs a frame socket.
func (l *Link) retryLocked() {
	time.AfterFunc(l.delay, func() {
		l.c.mu.Lock()
		defer l.c.mu.Unlock()
		if l.c.links[l.id] == l && l.pending == nil && l.c.quit.Err() == nil {
			l.renewLocked()
		}
	})
	l.delay = min(2*l.delay, lastRetry)
}

// Ready must be called when the VM has booted or was restored. It must also be called after a
// failed restore, even if the VM and its link will be closed soon. Ready sends the other end of the
// frame socket to forkd-net, which then handles the frames that the guest has sent.
func (l *Link) Ready() {
	if l == nil {
		return
	}
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	l.held = true
	if l.c.links[l.id] == l {
		l.renewLocked()
	}
}

// Set replaces policy, limits and secrets. When it returns nil, the new setting is in force. While
// forkd-net is not running, no traffic passes, and the next forkd-net receives the setting before
// any traffic.
func (l *Link) Set(ctx context.Context, setting Setting) error {
	if l == nil {
		return nil
	}
	l.c.mu.Lock()
	l.setting = setting
	m, n, current := l.setPolicyLocked(), l.conn, l.c.links[l.id] == l
	down := n == nil || n != l.c.conn
	if !down && setting.EndsTLS() {
		l.c.trustLocked(n)
	}
	l.c.mu.Unlock()
	if down || !current {
		return nil
	}
	return ignoreDown(n.call(ctx, netproto.KindSetPolicy, m, nil))
}

func ignoreDown(err error) error {
	if errors.Is(err, ErrDown) {
		return nil
	}
	return err
}

func (l *Link) setPolicyLocked() *netproto.SetPolicy {
	return &netproto.SetPolicy{ID: l.id, Policy: l.setting.Policy, Limits: l.setting.Limits, Secrets: l.setting.Secrets,
		Hold: l.setting.Hold}
}

// Stats returns the counters of the VM. See IgnoreUnconnected for its errors.
func (l *Link) Stats(ctx context.Context) (s netproto.Stats, err error) {
	err = l.ask(ctx, netproto.KindStats, &s)
	return s, err
}

// Effects returns the requests of the VM that were held. There are none while forkd-net is being
// restarted.
func (l *Link) Effects(ctx context.Context) (e netproto.Effects, err error) {
	err = l.ask(ctx, netproto.KindEffects, &e)
	return e, IgnoreUnconnected(err)
}

// IgnoreUnconnected returns nil if err says that the VM is not connected to forkd-net, for example
// because forkd-net is being restarted. For all other errors it returns err.
func IgnoreUnconnected(err error) error {
	if netproto.IsCode(err, netproto.CodeUnknown) {
		return nil
	}
	return ignoreDown(err)
}

// askTimeout is how long forkd-net may take to answer a question about a VM.
const askTimeout = 5 * time.Second

func (l *Link) ask(ctx context.Context, kind netproto.Kind, result parser) error {
	if l == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return l.c.ask(ctx, kind, l.id, result)
}

// Close removes the VM from the network and resets its connections.
func (l *Link) Close() {
	if l == nil {
		return
	}
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	if l.c.links[l.id] != l {
		return // another Link has replaced this one
	}
	delete(l.c.links, l.id)
	l.dropPendingLocked()
	l.dropSentLocked()
	if n := l.c.conn; n != nil && l.conn == n {
		n.post(netproto.KindDetach, &netproto.ID{ID: l.id}, nil, l.c.complain(l.id))
	}
}

func (l *Link) dropPendingLocked() {
	if l.pending != nil {
		_ = l.pending.Close()
		l.pending = nil
	}
}

func (l *Link) dropSentLocked() {
	if l.sent >= 0 {
		_ = unix.Close(l.sent)
		l.sent = -1
	}
}
