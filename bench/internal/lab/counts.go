package lab

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// Counts are the operations of a process since it started. They do not depend on the speed of the
// host.
type Counts struct {
	Switches uint64 // context switches away from the threads of the process
	Calls    uint64 // system calls
	Exits    uint64 // exits of the VM, including those that the kernel handles
	Faults   uint64 // page faults of the host, including faults in guest memory
}

// Sub returns the operations since the given counts were read.
func (c Counts) Sub(before Counts) Counts {
	return Counts{Switches: c.Switches - before.Switches, Calls: c.Calls - before.Calls,
		Exits: c.Exits - before.Exits, Faults: c.Faults - before.Faults}
}

// Counter counts the operations of every process on the host, from NewCounter to Close. A Counter
// makes all processes slower, so times must not be measured before Close.
type Counter struct {
	counts *ebpf.Map // keys are counterKeys
	undo   []func() error
}

// counterKey is the key of the map in which the kernel counts.
type counterKey struct{ Process, Kind uint32 }

// counted lists the tracepoints of the kernel that a Counter counts. The index is counterKey.Kind.
// An event counts for the thread that reaches the tracepoint. At sched_switch, this is the thread
// that loses its CPU.
var counted = []string{"sched_switch", "sys_enter", "kvm_exit"}

// maxCounted bounds the number of keys. Each process that runs during a benchmark needs a key for
// each tracepoint. If the map is full, processes that are started later are not counted.
const maxCounted = 1 << 16

// NewCounter starts counting. It needs root, and a kernel with BPF.
func NewCounter() (*Counter, error) {
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: maxCounted})
	if err != nil {
		return nil, fmt.Errorf("count by BPF: %w", err)
	}
	c := &Counter{counts: counts, undo: []func() error{counts.Close}}
	for kind, tracepoint := range counted {
		if err := c.attach(tracepoint, uint32(kind)); err != nil {
			c.Close()
			return nil, fmt.Errorf("count at the tracepoint %s: %w", tracepoint, err)
		}
	}
	return c, nil
}

func (c *Counter) attach(tracepoint string, kind uint32) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.RawTracepoint, License: "Dual MIT/GPL", Instructions: addOne(c.counts, kind)})
	if err != nil {
		return err
	}
	c.undo = append(c.undo, p.Close)
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: tracepoint, Program: p})
	if err != nil {
		return err
	}
	c.undo = append(c.undo, l.Close)
	return nil
}

// addOne returns a program that adds one to the count of the current process.
func addOne(counts *ebpf.Map, kind uint32) asm.Instructions {
	const key, first = -8, -16 // offsets on the stack: the key, and the value of a new entry
	return asm.Instructions{
		asm.FnGetCurrentPidTgid.Call(),
		asm.RSh.Imm(asm.R0, 32), // the upper half is the process id, the lower half the thread id
		asm.StoreMem(asm.RFP, key, asm.R0, asm.Word),
		asm.StoreImm(asm.RFP, key+4, int64(kind), asm.Word),

		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, key),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "new"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Ja.Label("end"),

		asm.Mov.Imm(asm.R1, 1).WithSymbol("new"),
		asm.StoreMem(asm.RFP, first, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, key),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, first),
		// If two threads add the new entry at the same time, one event is not counted.
		asm.Mov.Imm(asm.R4, int32(ebpf.UpdateNoExist)),
		asm.FnMapUpdateElem.Call(),

		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
		asm.Return(),
	}
}

// Read returns the counts of a running process. Page faults are counted from the start of the
// process, and all other operations from NewCounter on.
func (c *Counter) Read(pid int) (Counts, error) {
	var counts [3]uint64
	for kind := range counts {
		err := c.counts.Lookup(counterKey{uint32(pid), uint32(kind)}, &counts[kind])
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return Counts{}, fmt.Errorf("read counts: %w", err)
		}
	}
	faults, err := pageFaults(pid)
	return Counts{Switches: counts[0], Calls: counts[1], Exits: counts[2], Faults: faults}, err
}

// ReadChildren returns the counts of this process's child processes that are alive, by process id.
func (c *Counter) ReadChildren() (map[int]Counts, error) {
	pids, err := Children()
	if err != nil {
		return nil, err
	}
	out := make(map[int]Counts)
	for _, pid := range pids {
		if counts, err := c.Read(pid); err == nil { // fails if the child has exited
			out[pid] = counts
		}
	}
	return out, nil
}

// pageFaults returns minflt and majflt of a process (proc_pid_stat(5)).
func pageFaults(pid int) (uint64, error) {
	p, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := statFields(string(p))
	const minor, major = 7, 9
	if len(fields) <= major {
		return 0, fmt.Errorf("/proc/%d/stat has an unknown form", pid)
	}
	few, err := strconv.ParseUint(fields[minor], 10, 64)
	if err != nil {
		return 0, err
	}
	many, err := strconv.ParseUint(fields[major], 10, 64)
	return few + many, err
}

// statFields returns the fields of /proc/<pid>/stat that follow the name of the command. This name
// may contain any character. The first of these fields is field 3, the state.
func statFields(stat string) []string {
	i := strings.LastIndex(stat, ") ")
	if i < 0 {
		return nil
	}
	return strings.Fields(stat[i+2:])
}

// Close stops the counting.
func (c *Counter) Close() {
	for i := len(c.undo) - 1; i >= 0; i-- {
		_ = c.undo[i]()
	}
}
