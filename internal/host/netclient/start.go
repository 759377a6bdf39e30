package netclient

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/host/process"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// netEnv is all of forkd-net's environment. It returns memory to the host when a sandbox has ended.
var netEnv = []string{"GODEBUG=madvdontneed=1"}

func (c *Client) path(name string) string { return filepath.Join(c.cfg.Dir, name) }

// start starts a forkd-net.
func (c *Client) start() (*conn, error) {
	for _, name := range []string{socketFile, recordFile} {
		if err := os.Remove(c.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	listener, err := ctlsock.Listen(c.path(socketFile))
	if err != nil {
		return nil, err
	}
	listenerFile := os.NewFile(uintptr(listener), "control listener")
	defer listenerFile.Close()
	// Connected before the process starts, as with a VMM: one whose daemon dies now is left with
	// nobody, and ends.
	ctl, err := ctlsock.Dial(c.path(socketFile))
	if err != nil {
		return nil, err
	}
	proc, err := process.Start(process.Spec{Name: Name, Bin: c.cfg.Bin,
		Env: netEnv, Record: c.path(recordFile), Listener: listenerFile, Jail: c.cfg.Jail, Online: true})
	_ = listenerFile.Close() // so that its end is noticed before it has taken the connection
	if err != nil {
		return nil, errors.Join(err, ctl.Close())
	}
	n := newConn(proc, ctl, c.cfg.patience)
	if err := n.greet(c.quit, c.cfg.patience); err != nil {
		ended := n.end()
		return nil, errors.Join(fmt.Errorf("start forkd-net: %w; its last words: %s", err, n.lastWords()), ended)
	}
	return n, nil
}

// findTimeout is how long the forkd-net of an earlier daemon may take to answer before the daemon
// goes on without it.
const findTimeout = 5 * time.Second

// find returns the forkd-net that an earlier daemon has left running. One that is of another build,
// or does not answer, is ended. The error wraps os.ErrNotExist if there was none.
func (c *Client) find() (*conn, error) {
	proc, err := process.Find(Name, c.path(recordFile))
	if err != nil {
		return nil, err
	}
	ctl, err := ctlsock.Dial(c.path(socketFile))
	if err != nil {
		return nil, errors.Join(err, proc.Kill(), proc.Wait())
	}
	n := newConn(proc, ctl, c.cfg.patience)
	if err := c.takeOver(n); err != nil {
		return nil, errors.Join(err, n.end())
	}
	return n, nil
}

// takeOver checks that a running forkd-net is the one that would be started, and asks whom it has
// attached.
func (c *Client) takeOver(n *conn) error {
	running, err := os.Stat(fmt.Sprintf("/proc/%d/exe", n.proc.PID()))
	if err != nil {
		return err
	}
	ours, err := os.Stat(c.cfg.Bin)
	if err != nil {
		return err
	}
	if !os.SameFile(running, ours) {
		return errors.New("it is of another build")
	}
	if err := n.greet(c.quit, findTimeout); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.quit, findTimeout)
	defer cancel()
	var list netproto.List
	if err := n.call(ctx, netproto.KindList, nil, &list); err != nil {
		return err
	}
	n.attached = make(map[string]bool)
	for _, id := range list.IDs {
		n.attached[id] = true
	}
	return nil
}

// greet makes sure that both sides speak the same version.
func (n *conn) greet(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var welcome netproto.Welcome
	if err := n.call(ctx, netproto.KindHello, &netproto.Hello{Version: netproto.Version}, &welcome); err != nil {
		return err
	}
	if welcome.Version != netproto.Version {
		return fmt.Errorf("it speaks version %d, this daemon %d", welcome.Version, netproto.Version)
	}
	return nil
}
