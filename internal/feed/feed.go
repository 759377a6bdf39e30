// Package feed is the forkd-feed process. It serves the memory and the disk of a snapshot to VMMs
// while the frames of the snapshot are still arriving from a registry.
//
// The files are in a FUSE file system without a mount point. The daemon makes the file system, opens
// the files, and passes their descriptors to VMMs, which map and read them like all layers. The
// kernel caches the pages, so all children share them. A read of a page whose frame is missing waits
// until the daemon has fetched the frame. The process verifies every frame before it decodes it. If
// a frame will never arrive, the read fails: the process never answers with zeros in place of data.
//
// In its jail, the process has descriptors of the control socket and of the kernel's FUSE, and
// descriptors of the blobs, which it can only read. It has no network: the daemon fetches the
// frames. When all frames have arrived, the process no longer needs the daemon. It exits when the
// last VMM has closed its files.
package feed

import (
	"errors"
	"fmt"
	"os"

	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/proto/feedproto"
)

// Name is the name of the program.
const Name = "forkd-feed"

// Exit codes of the process.
const (
	exitClean    = 0
	exitProtocol = 2 // the daemon does not follow the protocol, or there is no daemon
)

// Main serves until the last file is closed, and returns the exit code.
func Main() int {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", Name, err)
		return exitProtocol
	}
	return exitClean
}

func run() error {
	control, err := feedproto.OpenControl()
	if err != nil {
		return err
	}
	if err := jail.Enter(jail.Config{Filter: allowed[:]}); err != nil {
		fmt.Fprintf(os.Stderr, "%s: cannot enter the jail: %v\n", Name, err)
		os.Exit(jail.ExitCode)
	}
	a := newArrivals(func(f feedproto.Frame) error { return control.Send(&feedproto.Need{Frame: f}) })
	s, err := setUp(control, a)
	if err != nil {
		return err
	}
	if err := control.Send(&feedproto.Ready{}); err != nil {
		return err
	}
	go follow(control, a)
	return s.serve()
}

// setUp receives the files and reads their indexes.
func setUp(control *feedproto.Control, a *arrivals) (*server, error) {
	m, fds, err := control.Receive()
	if err != nil {
		return nil, err
	}
	setup, ok := m.(*feedproto.Setup)
	if !ok {
		return nil, fmt.Errorf("the daemon sends %T first", m)
	}
	d, err := newDecoded()
	if err != nil {
		return nil, err
	}
	s := &server{fd: feedproto.FuseFD}
	for i, fd := range fds {
		f, openErr := openFile(i, setup.Files[i], os.NewFile(uintptr(fd), setup.Files[i].Name), a, d)
		err = errors.Join(err, openErr)
		s.files = append(s.files, f)
	}
	return s, err
}

// follow receives the daemon's messages about frames.
func follow(control *feedproto.Control, a *arrivals) {
	for {
		m, _, err := control.Receive()
		if err != nil { // the daemon has gone
			a.end(false)
			return
		}
		switch m := m.(type) {
		case *feedproto.Have:
			a.came(m.Frame)
		case *feedproto.Whole:
			a.end(true)
		case *feedproto.Lost:
			a.end(false)
		}
	}
}
