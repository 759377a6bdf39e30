// Package sshmux is the forkd-ssh process. It speaks SSH with one client of the daemon: key
// exchange, the mechanics of a login, and channels.
//
// The process decides nothing. The daemon holds the host's private key, and decides about logins,
// channels and requests (package sshproto). In its jail the process has two descriptors: the
// control socket and the client's connection. Through the control socket it receives descriptors
// for the streams of channels. It exits when the client or the daemon has left.
//
// Each client has a process of its own because a client, even without a login, can make
// golang.org/x/crypto/ssh hold memory without a bound. The memory of the process has a bound. If
// the client makes the process exceed it, only this client is disconnected. So the package need not
// count or drain what the client sends.
package sshmux

import (
	"fmt"
	"net"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/proto/sshproto"
)

// Name is the name of the program.
const Name = "forkd-ssh"

// Bounds of the process's private writable memory, in bytes, before the login (StrangerMemory) and
// after it (ClientMemory). If the bound is exceeded, Go's runtime ends the process. The bounds
// count mapped memory. At its start, Go's runtime maps about 70 MiB, but uses less than 1 MiB. A
// login takes less than 1 MiB more. After the login there is room for twice the memory of 32
// channels with full windows of 2 MiB each.
const (
	mappedAtStart  = 72 << 20
	StrangerMemory = mappedAtStart + 32<<20
	ClientMemory   = mappedAtStart + 128<<20
)

// maxFiles bounds the number of descriptors: one for each channel, and those that the process
// itself needs.
const maxFiles = 128

// maxLog bounds the length of a file that the process writes, in bytes. The process writes only its
// standard error.
const maxLog = 256 << 10

// Exit codes of the process.
const (
	exitClean    = 0 // the client or the daemon has ended the connection
	exitProtocol = 2 // the daemon does not follow the protocol, or there is no daemon
)

// Main speaks with the client until one side ends the connection, and returns the exit code.
func Main() int {
	if err := serve(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", Name, err)
		return exitProtocol
	}
	return exitClean
}

func serve() error {
	file := os.NewFile(sshproto.ClientFD, "client")
	client, err := net.FileConn(file)
	if err != nil {
		return err
	}
	_ = file.Close() // the connection client has a copy of the descriptor
	control, err := sshproto.OpenControl()
	if err != nil {
		return err
	}
	if err := jail.Enter(jail.Config{Filter: allowed[:], Files: maxFiles, Data: ClientMemory}); err != nil {
		fmt.Fprintf(os.Stderr, "%s: cannot enter the jail: %v\n", Name, err)
		os.Exit(jail.ExitCode)
	}
	if err := jail.LimitFiles(maxLog); err != nil {
		return err
	}
	if err := limitMemory(StrangerMemory); err != nil {
		return err
	}
	if err := control.Send(&sshproto.Ready{}); err != nil {
		return err
	}
	m, _, err := control.ReceiveFD()
	if err != nil {
		return err
	}
	setup, ok := m.(*sshproto.Setup)
	if !ok {
		return fmt.Errorf("the daemon sends %T first", m)
	}
	return newConnection(control).serve(client, setup.HostKey)
}

// limitMemory bounds the private writable memory. Near the bound, garbage is collected more often.
func limitMemory(most uint64) error {
	debug.SetMemoryLimit(int64((most - mappedAtStart) / 4 * 3))
	err := unix.Prlimit(0, unix.RLIMIT_DATA, &unix.Rlimit{Cur: most, Max: ClientMemory}, nil)
	if err != nil {
		return fmt.Errorf("bound the memory: %w", err)
	}
	return nil
}
