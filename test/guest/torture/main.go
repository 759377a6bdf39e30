// Command torture runs in a guest that is branched, forked and rolled back. It checks that each
// copy of the guest is complete and of a single instant.
//
//	torture serve SOCKET DIR MEMORY_MIB DISK_MIB   write memory and two files in DIR for ever; answer on SOCKET and on
//	                                               vsock port 7777, one answer line for each request line
//	torture ask SOCKET [mark N] [hot N] [rest MICROSECONDS] [verify]   set things and verify; prints a JSON report
//
// One thread per vCPU writes pages. Another thread writes disk blocks, and another takes memory
// from the kernel and gives it back. Every word of a page identifies the write that wrote it. Other
// pages have tables, records, hash chains and a common counter. From these, a verification computes
// the write that each page must contain. So it detects a page that is lost, stale, early, late or
// half-written, and registers, memory and disk that belong to different instants. Writers also
// check every page that they overwrite.
//
// A verification stops the writers between two writes, compares all data, and lets the writers
// continue. It cannot detect a copy that belongs as a whole to one wrong instant. To detect such a
// copy, the driver sets a mark before a copy and compares the mark afterwards. Each mark is larger
// than the previous one.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/test/torture/guest"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 5 && args[0] == "serve":
		mem, err := strconv.Atoi(args[3])
		blocks, err2 := strconv.Atoi(args[4])
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		return serve(args[1], args[2], shape{pages: mem << 20 / pageSize, blocks: blocks << 20 / pageSize,
			writers: runtime.NumCPU()})
	case len(args) >= 3 && args[0] == "ask":
		return ask(args[1], strings.Join(args[2:], " "))
	}
	return errors.New("usage: torture serve SOCKET DIR MEMORY_MIB DISK_MIB | torture ask SOCKET [mark N] [hot N] [rest MICROSECONDS] [verify]")
}

func ask(socket, line string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := fmt.Fprintln(c, line); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, c)
	return err
}

// server answers requests of the driver.
type server struct {
	a       *arena
	disk    *disk
	writers []*writer
	churner churner
}

func serve(socket, dir string, s shape) error {
	// There is no garbage to collect, and Go's scheduler would delay the threads that answer.
	// GOMAXPROCS is large enough for all threads, so the threads that answer compete with the
	// writers only in the kernel.
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(s.writers + 3)
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 10); err != nil {
		return fmt.Errorf("lower priority: %w", err)
	}
	a, err := newArena(s)
	if err != nil {
		return err
	}
	d, err := openDisk(dir, s)
	if err != nil {
		return err
	}
	srv := &server{a: a, disk: d}
	failed := make(chan error)
	for id := range s.writers + 1 {
		w := &writer{a: a, id: id, cpu: id, rng: uint64(id) + 1}
		if id == s.writers {
			w.cpu, w.disk = -1, d
		}
		srv.writers = append(srv.writers, w)
		go func() { failed <- w.run() }()
	}
	go func() { failed <- srv.churner.run() }()
	vsock, err := listenVsock()
	if err != nil {
		return err
	}
	go func() { failed <- srv.acceptVsock(vsock) }()
	l, err := net.Listen("unix", socket) // the last step, because a driver waits for this file
	if err != nil {
		return err
	}
	go func() { failed <- srv.accept(l) }()
	return <-failed
}

func listenVsock() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: guest.Port})
	}
	if err == nil {
		err = unix.Listen(fd, 8)
	}
	if err != nil {
		return -1, fmt.Errorf("listen on vsock port %d: %w", guest.Port, err)
	}
	return fd, nil
}

func (s *server) acceptVsock(fd int) error {
	for {
		c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if err == nil {
			s.serve(os.NewFile(uintptr(c), "vsock"))
		} else if err != unix.EINTR {
			return fmt.Errorf("accept on vsock: %w", err)
		}
	}
}

func (s *server) accept(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		s.serve(c)
	}
}

// serve answers one request.
func (s *server) serve(c io.ReadWriteCloser) {
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil {
		err = json.NewEncoder(c).Encode(s.answer(strings.Fields(line)))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture: answer:", err) // the client may have been killed, for example by a fork
	}
	_ = c.Close()
}

// answer carries out a request while no write is in progress.
func (s *server) answer(words []string) guest.Report {
	for _, w := range s.writers {
		w.mu.Lock()
		defer w.mu.Unlock()
	}
	s.churner.mu.Lock()
	defer s.churner.mu.Unlock()
	verify := false
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if word == "verify" {
			verify = true
			continue
		}
		at, known := map[string]int{"mark": wordMark, "hot": wordHot, "rest": wordRest}[word]
		if len(words) == 0 || !known {
			return guest.Report{Mismatches: []string{"unknown question " + word}}
		}
		n, err := strconv.ParseUint(words[0], 10, 64)
		if err != nil {
			return guest.Report{Mismatches: []string{err.Error()}}
		}
		words = words[1:]
		if word == "mark" && n < s.a.words[wordMark] {
			continue // a late request, by a driver that no longer waits; marks only grow
		}
		atomic.StoreUint64(&s.a.words[at], n)
	}
	r := guest.Report{OK: true, Seq: *s.a.ticket(), Mark: s.a.words[wordMark]}
	if verify {
		s.disk.forget()
		r = check(s.a, s.disk.read)
		s.churner.check()
	}
	r.CPUs = s.a.writers
	r.Mismatches = append(r.Mismatches, s.churner.faults...)
	for _, w := range s.writers {
		r.Mismatches = append(r.Mismatches, w.faults...)
	}
	r.OK = len(r.Mismatches) == 0
	return r
}
