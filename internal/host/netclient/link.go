package netclient

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// Give replaces the frame socket of a VM with the file vmm, and closes the file in any case. It may
// take some time.
type Give func(vmm *os.File) error

// Link is the connection of one VM to forkd-net. It is made by Join or Adopt and lasts until Close.
// The methods of a nil Link do nothing.
type Link struct {
	c    *Client
	id   string
	give Give

	giving sync.Mutex // held during a call of give

	// Guarded by the client's lock.
	setting Setting
	conn    *conn    // the forkd-net that has the other end of the VM's frame socket; nil: no forkd-net has it
	pending *os.File // forkd-net's end of a new frame socket, until it is sent; nil: there is no new socket
	ready   bool     // Ready has been called
}

// Join makes a Link for the VM of a sandbox. It returns the VM's end of the frame socket. Join does
// not wait. It also makes no work for forkd-net, because that work would compete with the VM for
// the host's CPUs. Ready sends forkd-net its end of the socket. The caller must call Ready when the
// VM has its end, and before the sandbox is announced. An earlier Link with the same id ends, and
// needs no Close.
func (c *Client) Join(id string, setting Setting, give Give) (*Link, *os.File, error) {
	if c == nil {
		return nil, nil, nil
	}
	vmm, net, err := frame.Pair()
	if err != nil {
		return nil, nil, err
	}
	l := &Link{c: c, id: id, give: give, setting: setting, pending: net}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(l)
	return l, vmm, nil
}

// Adopt joins the VM of a sandbox that an earlier daemon had joined. If forkd-net has run all the
// time, the VM keeps its connections.
func (c *Client) Adopt(id string, setting Setting, give Give) *Link {
	if c == nil {
		return nil
	}
	l := &Link{c: c, id: id, give: give, setting: setting, ready: true}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(l)
	if c.conn != nil && c.conn.attached[id] {
		l.conn = c.conn
		// Send the setting again. The earlier daemon may have been killed after it wrote the
		// setting to the sandbox's record, and before it sent the setting to forkd-net.
		if len(setting.Secrets) > 0 {
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
	}
	c.links[l.id] = l
}

// attachLocked sends the pending end of the frame socket to forkd-net, if there is one.
func (l *Link) attachLocked() {
	n := l.c.conn
	if n == nil || l.pending == nil {
		return
	}
	m := netproto.Attach(*l.setPolicyLocked())
	if len(m.Secrets) > 0 {
		l.c.trustLocked(n)
	}
	n.post(netproto.KindAttach, &m, l.pending, l.c.complain(l.id))
	l.conn, l.pending = n, nil
}

// renewLocked connects the VM to the present forkd-net, if the VM was connected to an earlier one.
// It does nothing for a VM that is still being restored with one end of an earlier socket, because
// Ready handles that case.
func (l *Link) renewLocked() {
	n := l.c.conn
	if n == nil || l.conn == n {
		return
	}
	if l.pending != nil {
		l.attachLocked() // the VM has the other end of the socket, or will get it
		return
	}
	if !l.ready {
		return
	}
	vmm, net, err := frame.Pair()
	if err != nil {
		l.c.cfg.Log.Error("sandbox has no network", "sandbox", l.id, "error", err)
		return
	}
	l.pending = net
	l.attachLocked()
	go l.handOver(vmm, n)
}

// handOver gives one end of a frame socket, the file vmm, to the VM. The forkd-net process of n has
// the other end. If l no longer uses n, or the client no longer uses l, handOver does nothing.
func (l *Link) handOver(vmm *os.File, n *conn) {
	l.giving.Lock()
	defer l.giving.Unlock()
	l.c.mu.Lock()
	current := l.conn == n && l.c.links[l.id] == l
	l.c.mu.Unlock()
	if !current {
		_ = vmm.Close()
		return
	}
	if err := l.give(vmm); err != nil {
		l.c.cfg.Log.Warn("a sandbox could not be given another network", "sandbox", l.id, "error", err)
	}
}

// Ready must be called when the VM has its end of the frame socket, and also after a failed restore;
// closing the VM then closes the link. Ready sends the other end to forkd-net, which then handles the
// frames that the guest has sent.
func (l *Link) Ready() {
	if l == nil {
		return
	}
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	l.ready = true
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
	if !down && len(setting.Secrets) > 0 {
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
	return &netproto.SetPolicy{ID: l.id, Policy: l.setting.Policy, Limits: l.setting.Limits, Secrets: l.setting.Secrets}
}

// Stats returns the counters of the VM. If forkd-net is not running, the error is ErrDown.
func (l *Link) Stats(ctx context.Context) (netproto.Stats, error) {
	if l == nil {
		return netproto.Stats{}, ErrDown
	}
	return l.c.stats(ctx, l.id)
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
