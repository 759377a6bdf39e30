// Package net is the forkd-net process: it serves the control socket (package netproto) and gives
// every sandbox its way to the network, decided by the sandbox's policy.
//
// The process opens nothing but sockets and reads no file: resolvers, the host's addresses, the
// flow log and the frame sockets come from the daemon. It has one network stack for each sandbox
// whose guest has sent a packet, and for the others a descriptor and a small record. It lives on
// without a daemon while there are sandboxes. It does not restart anything: when it dies, the
// daemon starts another.
package net

import (
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"

	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/net/stack"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/netproto"
)

const (
	loneliness = 10 * time.Second // with neither daemon nor sandbox, before the process ends
	sweepTime  = 5 * time.Second  // between looks for idle flows
)

// patience is how many frames of a sandbox are read without a stack for it.
const patience = 100

// Exit codes of the process.
const (
	exitClean    = 0
	exitProtocol = 2 // the control socket is unusable
)

// Main serves the control socket until nobody needs the process any more, and returns its exit
// code.
func Main() int {
	log.SetTarget(&log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}}) // gVisor's: a guest could fill it
	if err := jail.Enter(jail.Config{Filter: allowed[:], Online: true}); err != nil {
		fmt.Fprintf(os.Stderr, "forkd-net: cannot enter the jail: %v\n", err)
		return jail.ExitCode
	}
	memory := memoryLimit()
	host := stack.NewHost(stack.Sockets(maxFiles(), memory))
	host.SetMemory(memory)
	s, err := newServer(host, loneliness)
	if err != nil {
		fmt.Fprintf(os.Stderr, "forkd-net: %v\n", err)
		return exitProtocol
	}
	failed := make(chan error, 1)
	go func() {
		for {
			conn, err := ctlsock.Accept(netproto.ListenerFD)
			if err != nil {
				failed <- err
				return
			}
			go s.serve(conn)
		}
	}()
	select {
	case <-s.lonely:
		return exitClean
	case err := <-failed:
		fmt.Fprintf(os.Stderr, "forkd-net: %v\n", err)
		return exitProtocol
	}
}

// memoryLimit is how many bytes this process may have: what the daemon gives it in GOMEMLIMIT, or what it
// has on the smallest of hosts.
func memoryLimit() int64 {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 { // which changes nothing
		return limit
	}
	return stack.LeastMemory
}

// maxFiles is how many of the process's descriptors may be flows of guests. The rest are for frame
// sockets and DNS.
func maxFiles() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 512
	}
	return int(min(limit.Cur, 1<<20)) / 4 * 3
}
