// Package generators handles the random number generators that processes of the guest keep in their
// own memory. After a fork such a generator has the same state in all forked sandboxes, so it would
// produce the same numbers in each of them. The package reseeds the generators that can be reseeded
// from outside, and lists the other generators.
//
// It runs no code in a process and stops no process. For OpenSSL it changes two words of a
// generator's state, so that the generator considers a reseed due (drbg.go). For libraries that
// keep a page with MADV_WIPEONFORK it wipes that page, as fork(2) would (wipe.go). In both cases
// the generator reseeds from the kernel's generator when it is next used, so the caller must reseed
// the kernel first.
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

// Each search is bounded, because the client that requested a fork waits for it. If a bound is
// exceeded, the report names the processes that were not searched. The time limit is for emulated
// CPUs. Other CPUs need milliseconds.
const (
	maxTime      = 15 * time.Second
	maxRehearsal = 60 * time.Second
	maxMemory    = 1 << 30 // bytes of memory and files that are read, over all processes
)

// Finder searches the processes of one system.
type Finder struct {
	proc      string // mount point of procfs
	managed   Managed
	maxTime   time.Duration
	maxMemory int
	files     map[fileID]marks

	// loadavg is a descriptor of /proc/loadavg, which shows the process id that the kernel has
	// allocated last. It stays open, so that a fork opens nothing.
	loadavg int
	// quiet is the process id that /proc/loadavg showed at the end of Rehearse, if Rehearse found
	// no process to search. Otherwise it is 0.
	quiet int
	own   string // directory of the agent's threads
}

// maxNew is how many new process ids are checked one by one. If there are more, all processes are
// searched.
const maxNew = 64

// Managed returns the process ids of the agent's own interpreters, in two lists. A search skips the
// interpreters in the first list, because they reseed all of their generators. The interpreters in
// the second list reseed the generators that a search would report as repeating. A search does not
// report these generators, but reseeds the other generators of these interpreters.
type Managed func() (renewed, partly []int)

// New returns a finder for this system.
func New(managed Managed) *Finder {
	return in("/proc", managed)
}

// in(proc, managed) returns a finder for the system whose procfs is mounted at proc.
func in(proc string, managed Managed) *Finder {
	f := &Finder{proc: proc, managed: managed, maxTime: maxTime, maxMemory: maxMemory,
		files: map[fileID]marks{}, own: proc + "/" + strconv.Itoa(os.Getpid()) + "/task/"}
	var err error
	if f.loadavg, err = unix.Open(proc+"/loadavg", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		f.loadavg = -1 // makes every search check all processes
	}
	return f
}

// search is the state of one search.
type search struct {
	*Finder
	deadline time.Time
	left     int              // bytes that may still be read
	chunk    []byte           // buffer of a page and chunkSize bytes; page-aligned, as O_DIRECT requires
	maps     []byte           // text of /proc/PID/maps of the present process
	regions  []region         // the parsed mappings of the present process
	mapped   map[string]marks // marks of the files that the present process maps, by device and inode
	report   agentproto.Unique
	unnamed  map[int]bool
	entries  []byte // buffer for entries of /proc/PID/pagemap
}

// Rehearse is called just before a snapshot. If the guest runs no process to search, Rehearse
// records this fact. So Renew need not walk through /proc in the children of the snapshot. The walk
// would copy 900 KiB of memory in each child. If there are processes to search, Rehearse reads the
// marks of all programs, so that the children need not read them.
func (f *Finder) Rehearse() error {
	before := f.lastPID()
	renewed, _ := f.managed()
	pids, err := f.processes(renewed)
	f.quiet = 0
	f.news(before-1, before) // called once before the snapshot, so that the code of the method news is in memory
	// The search may make the Go runtime start a thread. Renew must not take that thread for a new
	// process, so the field quiet is the last process id after the search.
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
			_, _, _ = p.classify() // ignore the error, because a forked sandbox gets it again and reports it
			p.mem.Close()
		}
	}
	return nil
}

// Renew searches all processes and reseeds the generators that can be reseeded. It returns a list
// of the reseeded generators and a list of the repeating generators. The second list also has the
// processes that cannot be searched. An error means that procfs itself failed.
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

// search returns a new search. The caller must close the search, to free memory.
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

// lastPID returns the last process id that the kernel has allocated, or 0 if /proc/loadavg cannot
// be read.
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

// news reports whether a new process may exist. It examines the process ids from after+1 to last,
// and ignores kernel threads and threads of the agent. It allocates nothing.
func (f *Finder) news(after, last int) bool {
	if last < after || last-after > maxNew { // the ids have wrapped around, or are 0 because they could not be read
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

// processes returns all processes of the system except this process, kernel threads, and the
// processes in renewed.
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
		var exe [1]byte // reading exe fails for kernel threads and dead processes
		if _, err := unix.Readlink(f.path(pid, "exe"), exe[:]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func (f *Finder) path(pid int, name string) string {
	return f.proc + "/" + strconv.Itoa(pid) + "/" + name
}

// process searches one process. If the process has ended in the meantime, it has no generators, and
// the method does nothing.
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

// open reads the mappings of the process, and opens its memory. The caller must close p.mem.
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

// add appends g to the list if the list does not contain g.
func add(list []agentproto.Generator, g agentproto.Generator) []agentproto.Generator {
	for i := len(list) - 1; i >= 0 && list[i].PID == g.PID; i-- {
		if list[i] == g {
			return list
		}
	}
	return append(list, g)
}
