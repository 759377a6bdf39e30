// Package generators finds random number generators that processes of the guest keep in their own
// memory, so that a copy of the machine has them in the same state as its siblings. It reseeds
// those that can be reseeded from outside and names the others.
//
// It runs no code in a process and stops none. For OpenSSL it changes two words of a generator's
// state, which mark a reseed as due (drbg.go). For libraries that keep a page with MADV_WIPEONFORK
// it wipes that page, as fork(2) would (wipe.go). Both reseed at their next use from the kernel's
// generator, so the caller must reseed the kernel first.
//
// The agent's own interpreters reseed themselves (package eval) and are not handled here.
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

// Bounds of one search, because a fork's caller waits for the confirmation. A process whose memory is
// not reached is named. An emulated CPU needs seconds instead of milliseconds.
const (
	maxTime      = 15 * time.Second
	maxRehearsal = 60 * time.Second
	maxMemory    = 1 << 30 // bytes of memory and files read, of all processes
)

// Finder searches the processes of one system.
type Finder struct {
	proc      string // mount point of procfs
	managed   Managed
	maxTime   time.Duration
	maxMemory int
	files     map[fileID]marks

	// quiet is the last process id that the kernel had allocated when Rehearse found no process; 0
	// if it found one. loadavg is /proc/loadavg, which contains that id; it stays open, so that a
	// fork opens nothing.
	loadavg int
	quiet   int
	own     string // directory of this process's threads
}

// maxNew is how many new process ids are checked one by one. Beyond it all processes are checked.
const maxNew = 64

// Managed returns the agent's own interpreters. Those in renewed reseed all of their generators,
// and are not searched. Those in partly renew the generators that would be named as repeating;
// their other generators are reseeded here and not named.
type Managed func() (renewed, partly []int)

// New returns a finder for this system.
func New(managed Managed) *Finder {
	return in("/proc", managed)
}

// in returns a finder for the system whose procfs is at proc.
func in(proc string, managed Managed) *Finder {
	f := &Finder{proc: proc, managed: managed, maxTime: maxTime, maxMemory: maxMemory,
		files: map[fileID]marks{}, own: proc + "/" + strconv.Itoa(os.Getpid()) + "/task/"}
	var err error
	if f.loadavg, err = unix.Open(proc+"/loadavg", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		f.loadavg = -1 // every search then checks all processes
	}
	return f
}

// search is one search.
type search struct {
	*Finder
	deadline time.Time
	left     int              // bytes of memory that may still be read
	chunk    []byte           // a page and chunkSize bytes, from a page boundary on, as O_DIRECT asks
	maps     []byte           // of the process that is searched
	regions  []region         // the same, parsed
	mapped   map[string]marks // of the files that are mapped now, by device and inode
	report   agentproto.Unique
	unnamed  map[int]bool
	entries  []byte // of pagemap
}

// Rehearse is called just before a snapshot. If the guest runs no process to search, it records
// that for Renew, and the children of the snapshot are spared the walk through /proc, which would
// copy 900 KiB of memory in each. Otherwise it reads the marks of all programs, for the children.
func (f *Finder) Rehearse() error {
	before := f.lastPID()
	renewed, _ := f.managed()
	pids, err := f.processes(renewed)
	f.quiet = 0
	f.news(before-1, before) // so that children find its code in memory
	// The search itself may make the runtime start a thread, which children must not count as new.
	if last := f.lastPID(); before > 0 && !f.news(before, last) && err == nil && len(pids) == 0 {
		f.quiet = last
	}
	if err != nil || len(pids) == 0 {
		return err
	}
	s, err := f.search(maxRehearsal)
	if err != nil {
		return err
	}
	defer s.close()
	for _, pid := range pids {
		p := &process{search: s, pid: pid}
		if p.open() == nil {
			_, _, _ = p.classify() // a child finds the error again, and reports it
			p.mem.Close()
		}
	}
	return nil
}

// Renew searches all processes, reseeds the generators that it can and returns both lists. The
// error is one of procfs itself; a process that cannot be searched is in the report.
func (f *Finder) Renew() (agentproto.Unique, error) {
	if f.quiet > 0 && !f.news(f.quiet, f.lastPID()) {
		return agentproto.Unique{}, nil
	}
	renewed, partly := f.managed()
	pids, err := f.processes(renewed)
	if err != nil || len(pids) == 0 {
		return agentproto.Unique{}, err
	}
	s, err := f.search(f.maxTime)
	if err != nil {
		return agentproto.Unique{}, err
	}
	defer s.close()
	for _, pid := range partly {
		s.unnamed[pid] = true
	}
	for _, pid := range pids {
		s.process(pid)
	}
	return s.report, nil
}

// search begins a search, whose memory close gives back.
func (f *Finder) search(within time.Duration) (*search, error) {
	chunk, err := unix.Mmap(-1, 0, pageSize+chunkSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("search processes: %w", err)
	}
	return &search{Finder: f, deadline: time.Now().Add(within), left: f.maxMemory, chunk: chunk,
		unnamed: map[int]bool{}, mapped: map[string]marks{}}, nil
}

func (s *search) close() { _ = unix.Munmap(s.chunk) }

// lastPID returns the last process id that the kernel has allocated; 0 if that cannot be read.
func (f *Finder) lastPID() (pid int) {
	var line [128]byte
	n, err := rawcall.Pread(f.loadavg, line[:], 0)
	if err != nil {
		return 0
	}
	field := bytes.TrimSpace(line[:n])
	for _, c := range field[bytes.LastIndexByte(field, ' ')+1:] {
		if c < '0' || c > '9' {
			return 0
		}
		pid = 10*pid + int(c-'0')
	}
	return pid
}

// news reports whether a process id after one and up to another may belong to a new process, other
// than a kernel thread or a thread of this process. It allocates nothing.
func (f *Finder) news(after, last int) bool {
	if last < after || last-after > maxNew { // ids have wrapped around, or cannot be read
		return true
	}
	for pid := after + 1; pid <= last; pid++ {
		var path [128]byte
		var info unix.Stat_t
		exe := append(strconv.AppendInt(append(append(path[:0], f.proc...), '/'), int64(pid), 10), "/exe"...)
		if err := rawcall.Stat(exe, &info); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
			continue
		}
		thread := strconv.AppendInt(append(path[:0], f.own...), int64(pid), 10)
		if rawcall.Stat(thread, &info) != nil {
			return true
		}
	}
	return false
}

// processes returns the processes of the system except this one, those in renewed, and kernel
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
		var exe [1]byte // kernel threads and dead processes have none
		if _, err := unix.Readlink(f.path(pid, "exe"), exe[:]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func (f *Finder) path(pid int, name string) string {
	return f.proc + "/" + strconv.Itoa(pid) + "/" + name
}

// process searches one process. A process that has ended in the meantime has nothing to repeat.
func (s *search) process(pid int) {
	exe, err := os.Readlink(s.path(pid, "exe"))
	if err != nil {
		return
	}
	p := &process{search: s, pid: pid, program: base([]byte(exe))}
	if err := p.run(); err != nil && !gone(err) {
		p.repeats(fmt.Sprintf("not searched: %v", err))
	}
}

// gone reports whether err means that the process has ended.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// process is the search of one process.
type process struct {
	*search
	pid     int
	program string
	mem     *os.File
}

// open reads the mappings of the process, and opens its memory, which the caller closes.
func (p *process) open() error {
	err := p.readMaps()
	if err != nil {
		return err
	}
	p.mem, err = os.OpenFile(p.path(p.pid, "mem"), os.O_RDWR, 0)
	return err
}

func (p *process) run() error {
	if err := p.open(); err != nil {
		return err
	}
	defer p.mem.Close()
	repeats, openssl, err := p.classify()
	if err != nil {
		return err
	}
	for _, library := range repeats {
		p.repeats(library)
	}
	if err := p.wipe(); err != nil || !openssl {
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

// add appends an entry that is not in the list.
func add(list []agentproto.Generator, g agentproto.Generator) []agentproto.Generator {
	for i := len(list) - 1; i >= 0 && list[i].PID == g.PID; i-- {
		if list[i] == g {
			return list
		}
	}
	return append(list, g)
}
