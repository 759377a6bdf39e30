// Package net is the forkd-net process. It serves the control socket (package netproto) and
// connects every sandbox to the network as the sandbox's policy permits.
//
// In its jail the process opens sockets but no files. The daemon sends it the addresses of
// resolvers and of the host, and descriptors of the flow log and of the frame sockets. The process
// creates a network stack for a sandbox when the guest sends a packet that needs a stack. Before
// that, the sandbox has only a descriptor and a small record. The process continues without a
// daemon while there are sandboxes. If it is killed, the daemon starts another process.
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
	loneliness = 10 * time.Second // the process exits if it has neither a daemon nor a sandbox for this time
	sweepTime  = 5 * time.Second  // interval of checks for idle flows
)

// patience limits the frames that need no stack. After a guest has sent this many of them, its next
// frame creates a stack in any case.
const patience = 100

// Exit codes of the process.
const (
	exitClean    = 0
	exitProtocol = 2 // the control socket is unusable
)

// Main serves the control socket until the process is no longer needed, and returns its exit code.
func Main() int {
	log.SetTarget(&log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}}) // gVisor's log, which a guest could fill
	receive := stack.LargestReceive()                                        // read now, because the jail has no /proc
	if err := jail.Enter(jail.Config{Filter: allowed[:], Online: true}); err != nil {
		fmt.Fprintf(os.Stderr, "forkd-net: cannot enter the jail: %v\n", err)
		return jail.ExitCode
	}
	memory := memoryLimit()
	host := stack.NewHost(stack.Sockets(maxFiles(), memory))
	host.SetMemory(memory)
	host.SetReceive(receive)
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

// memoryLimit returns the memory limit of this process in bytes. The daemon sets it in GOMEMLIMIT.
// If the variable is unset, memoryLimit returns the limit for the smallest hosts.
func memoryLimit() int64 {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 { // a negative argument only queries
		return limit
	}
	return stack.LeastMemory
}

// maxFiles returns how many of the process's descriptors may be used for flows of guests. The other
// descriptors are for the process itself, such as frame sockets and sockets for DNS.
func maxFiles() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 512
	}
	return int(min(limit.Cur, 1<<20)) / 4 * 3
}
