package netclient

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/netproto"
)

// resolvConf is the file that names the host's DNS servers.
const resolvConf = "/etc/resolv.conf"

// followEvery is how often the host's resolvers are checked. A check reads one small file and asks
// the kernel once.
const followEvery = 5 * time.Second

// hostConfig returns the host's current configuration (resolvers, addresses and the proxy), given
// the previous configuration. If the resolvers cannot be determined, the result has no resolvers.
// If the addresses cannot be determined, the result has the previous addresses.
func hostConfig(resolvers []netip.AddrPort, proxy Proxy, before netproto.Config) netproto.Config {
	config := netproto.Config{Resolvers: resolvers, Proxy: proxy.resolve(before.Proxy)}
	if text, err := os.ReadFile(resolvConf); err == nil && len(resolvers) == 0 {
		config.Resolvers = parseResolvConf(text)
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		config.Own = before.Own
		return config
	}
	for _, a := range addrs {
		if p, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(p.IP); ok {
				config.Own = append(config.Own, addr.Unmap())
			}
		}
	}
	return config
}

// maxResolvers is how many resolvers the C library uses (MAXNS, resolv.h).
const maxResolvers = 3

// parseResolvConf returns the name servers in a resolv.conf (resolv.conf(5)). Like the C library,
// it ignores invalid lines.
func parseResolvConf(text []byte) (resolvers []netip.AddrPort) {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan() && len(resolvers) < maxResolvers; {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil {
			resolvers = append(resolvers, netip.AddrPortFrom(a, 53))
		}
	}
	return resolvers
}

// addressChanges returns a channel that receives a value when an address of the host is added or
// removed (rtnetlink(7)). The channel receives nothing after ctx has ended.
func addressChanges(ctx context.Context) (<-chan struct{}, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch the host's addresses: %w", err)
	}
	groups := uint32(unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return nil, errors.Join(fmt.Errorf("watch the host's addresses: %w", err), unix.Close(fd))
	}
	f := os.NewFile(uintptr(fd), "rtnetlink")
	context.AfterFunc(ctx, func() { _ = f.Close() })
	changed := make(chan struct{}, 1)
	go func() {
		buf := make([]byte, 16<<10) // the messages' content is ignored, because all addresses are read again
		for {
			if _, err := f.Read(buf); err != nil && !errors.Is(err, unix.ENOBUFS) { // ENOBUFS: some messages were lost
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed, nil
}

// followHost sends the host's configuration to forkd-net after each change: at once if addresses
// change, and within followEvery if resolvers change.
func (c *Client) followHost() {
	changed, err := addressChanges(c.quit)
	if err != nil {
		c.cfg.Log.Warn("addresses that the host is given are noticed late", "after", followEvery, "error", err)
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.quit.Done():
			return
		case <-changed:
		case <-tick.C:
		}
		c.mu.Lock()
		before := c.host
		c.mu.Unlock()
		now := hostConfig(c.cfg.Resolvers, c.cfg.Proxy, before) // without the lock, because a lookup may take time
		c.mu.Lock()
		if !reflect.DeepEqual(now, c.host) {
			c.host = now
			c.configureLocked()
		}
		c.mu.Unlock()
	}
}

// configureLocked sends the host's configuration and the flow log to forkd-net.
//
// +checklocks:c.mu
func (c *Client) configureLocked() {
	if c.conn == nil {
		return
	}
	var log *os.File
	if c.flows != nil {
		var err error
		if log, err = duplicate(c.flows); err != nil {
			c.cfg.Log.Error("the flow log is left out", "error", err)
		}
	}
	host := c.host
	c.conn.post(netproto.KindConfig, &host, log, func(_ []byte, err error) {
		if err != nil && !errors.Is(err, ErrDown) {
			c.cfg.Log.Error("configure forkd-net", "error", err)
		}
	})
}

// duplicate returns a new descriptor for the same open file.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// openFlowLog opens the flow log, if one is configured.
func (c *Client) openFlowLog() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.openFlowLogLocked()
}

// +checklocks:c.mu
func (c *Client) openFlowLogLocked() error {
	if c.cfg.FlowLog == "" {
		return nil
	}
	f, err := os.OpenFile(c.cfg.FlowLog, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the flow log: %w", err)
	}
	earlier := c.flows
	c.flows = f
	if earlier != nil {
		return earlier.Close()
	}
	return nil
}

// ReopenLog reopens the flow log, for use after another program has renamed the file.
func (c *Client) ReopenLog() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.openFlowLogLocked(); err != nil {
		return err
	}
	c.configureLocked()
	return nil
}
