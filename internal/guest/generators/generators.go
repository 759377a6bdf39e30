// Package generators finds random number generators that processes of the guest keep in their own
// memory, and which a copy of the machine therefore has in the same state as its siblings. It
// reseeds those that can be reseeded from outside and names the others.
//
// It runs no code in a process and stops none. OpenSSL's generators are told by two words of their
// state that a reseed is due (drbg.go), and libraries that keep a page with MADV_WIPEONFORK find it
// wiped, as after fork(2) (wipe.go). Both reseed with their next use, from the kernel's generator,
// so the caller must have reseeded that before.
//
// The agent's own interpreters reseed themselves (package eval) and are none of its business.
package generators

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/rawcall"
)

// Bounds of one search of memory. A fork that is not confirmed holds up its caller; a process whose
// memory is not reached is named. An emulated CPU needs seconds for what others do in milliseconds.
const (
	maxTime   = 15 * time.Second
	maxMemory = 1 << 30 // bytes of memory read, of all processes
)

// Finder searches the processes of one system.
type Finder struct {
	proc      string // mount point of procfs
	managed   Managed
	maxTime   time.Duration
	maxMemory int

	// The last process id that the kernel had allocated when a search found no process, as text,
	// and that of now. loadavg is /proc/loadavg, which has it; it stays open, so that a fork opens
	// nothing.
	loadavg  int
	quiet    [pidDigits]byte
	now      [pidDigits]byte
	wasQuiet bool
}

// pidDigits is room for a process id as text.
const pidDigits = 16

// Managed returns the interpreters of the agent's own. Those of renewed reseed all that they have,
// and are not looked at. Those of partly renew what of theirs would be named as repeating, and are
// reseeded here but not named.
type Managed func() (renewed, partly []int)

// New returns a finder of this system.
func New(managed Managed) *Finder {
	f := &Finder{proc: "/proc", managed: managed, maxTime: maxTime, maxMemory: maxMemory}
	var err error
	if f.loadavg, err = unix.Open(f.proc+"/loadavg", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		f.loadavg = -1 // every search walks through all processes then
	}
	return f
}

// search is one search. Its buffers are allocated when a process is found.
type search struct {
	*Finder
	deadline time.Time
	left     int // bytes of memory that may still be read
	chunk    []byte
	report   agentproto.Unique
	unnamed  map[int]bool
	entries  []byte // of pagemap
}

// Renew searches all processes, reseeds what it can and returns both lists. The error is one of
// procfs itself; a process that cannot be searched is in the report.
func (f *Finder) Renew() (agentproto.Unique, error) {
	known := f.readLastPID()
	if known && f.wasQuiet && f.now == f.quiet {
		return agentproto.Unique{}, nil
	}
	renewed, partly := f.managed()
	pids, err := f.processes(renewed)
	if err != nil {
		return agentproto.Unique{}, err
	}
	if f.wasQuiet = known && len(pids) == 0; len(pids) == 0 {
		f.quiet = f.now
		return agentproto.Unique{}, nil
	}
	s := &search{Finder: f, deadline: time.Now().Add(f.maxTime), left: f.maxMemory, unnamed: map[int]bool{}}
	for _, pid := range partly {
		s.unnamed[pid] = true
	}
	for _, pid := range pids {
		s.process(pid)
	}
	return s.report, nil
}

// readLastPID reads the last process id that the kernel has allocated, and reports whether that
// could be read. If it is the one of a search that found no process, there is none now. That spares
// a child that runs nothing of the user's the walk through /proc, which would copy pages of the
// kernel's for each of its threads.
func (f *Finder) readLastPID() bool {
	if f.loadavg < 0 {
		return false
	}
	var line [128]byte
	n, err := rawcall.Pread(f.loadavg, line[:], 0)
	if err != nil {
		return false
	}
	field := bytes.TrimSpace(line[:n])
	field = field[bytes.LastIndexByte(field, ' ')+1:]
	f.now = [pidDigits]byte{}
	return copy(f.now[:], field) > 0
}

// processes returns the processes of the system but for this one, those of renewed, and the kernel's
// threads.
func (f *Finder) processes(renewed []int) ([]int, error) {
	dir, err := os.Open(f.proc)
	if err != nil {
		return nil, fmt.Errorf("find processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("find processes: %w", err)
	}
	omit := map[int]bool{os.Getpid(): true}
	for _, pid := range renewed {
		omit[pid] = true
	}
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || omit[pid] {
			continue
		}
		var exe [1]byte // the kernel's threads and the dead have none
		if _, err := unix.Readlink(f.path(pid, "exe"), exe[:]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func (f *Finder) path(pid int, name string) string {
	return f.proc + "/" + strconv.Itoa(pid) + "/" + name
}

// process searches one process. A process that ends meanwhile has nothing to repeat.
func (s *search) process(pid int) {
	exe, err := os.Readlink(s.path(pid, "exe"))
	if err != nil {
		return
	}
	program := base(exe)
	p := &process{search: s, pid: pid, program: program}
	if err := p.run(exe); err != nil && !gone(err) {
		p.repeats(fmt.Sprintf("not searched: %v", err))
	}
}

// gone reports whether err is that of a process which has ended.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// process is the search of one process.
type process struct {
	*search
	pid     int
	program string
	regions []region
	mem     *os.File
}

func (p *process) run(exe string) error {
	maps, err := os.ReadFile(p.path(p.pid, "maps"))
	if err != nil {
		return err
	}
	if p.regions, err = parseMaps(maps); err != nil || len(p.regions) == 0 {
		return err
	}
	if p.mem, err = os.OpenFile(p.path(p.pid, "mem"), os.O_RDWR, 0); err != nil {
		return err
	}
	defer p.mem.Close()
	traits := p.classify(exe)
	for _, library := range traits.repeats {
		p.repeats(library)
	}
	if traits.ownHeap {
		return nil
	}
	if err := p.wipe(); err != nil {
		return err
	}
	return p.reseedDRBGs()
}

func (p *process) repeats(library string) {
	if !p.unnamed[p.pid] {
		p.report.Repeats = add(p.report.Repeats, p.entry(library))
	}
}

func (p *process) reseeded(library string) {
	p.report.Reseeded = add(p.report.Reseeded, p.entry(library))
}

func (p *process) entry(library string) agentproto.Generator {
	return agentproto.Generator{PID: uint32(p.pid), Program: p.program, Library: library}
}

// add appends an entry that the list does not have.
func add(list []agentproto.Generator, g agentproto.Generator) []agentproto.Generator {
	for i := len(list) - 1; i >= 0 && list[i].PID == g.PID; i-- {
		if list[i] == g {
			return list
		}
	}
	return append(list, g)
}
