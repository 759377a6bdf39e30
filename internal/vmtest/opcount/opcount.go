// Package opcount counts the operations of processes: system calls by number, ioctls by request,
// context switches, exits of VMs and page faults. The kernel counts them at its tracepoints (BPF), so
// the counted processes are unchanged, and their jails need no exception.
//
// Benchmarks report the counts. Tests compare them with budgets. No program of the product contains
// this package.
package opcount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
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

// Counter counts the operations of every process on the host, from New to Close. A Counter makes
// all processes slower, so times must not be measured before Close.
type Counter struct {
	counts *ebpf.Map // keys are of the type key
	undo   []func() error
}

// key is the key of the map in which the kernel counts.
type key struct {
	Process uint32
	Kind    uint32
	Detail  uint32 // number of the system call, or request of the ioctl; 0 for other kinds
}

// Kinds of events. An event counts for the thread that reaches the tracepoint. For a switch, this is
// the thread that loses its CPU.
const (
	kindSwitch uint32 = iota
	kindCall
	kindExit
	kindNumber // a system call, by number
	kindIoctl  // an ioctl, by request
)

// maxCounted bounds the number of keys. A process needs a key for each tracepoint, each number of a
// system call and each request of an ioctl, together about 40. If the map is full, operations with
// new keys are not counted.
const maxCounted = 1 << 18

// New starts counting. It needs root, and a kernel with BPF.
func New() (*Counter, error) {
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 12, ValueSize: 8, MaxEntries: maxCounted})
	if err != nil {
		return nil, fmt.Errorf("count by BPF: %w", err)
	}
	c := &Counter{counts: counts, undo: []func() error{counts.Close}}
	for tracepoint, program := range map[string]asm.Instructions{
		"sched_switch": c.simple(kindSwitch), "kvm_exit": c.simple(kindExit), "sys_enter": c.calls(),
	} {
		if err := c.attach(tracepoint, program); err != nil {
			c.Close()
			return nil, fmt.Errorf("count at the tracepoint %s: %w", tracepoint, err)
		}
	}
	return c, nil
}

func (c *Counter) attach(tracepoint string, program asm.Instructions) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.RawTracepoint, License: "Dual MIT/GPL", Instructions: program})
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

// Offsets on the stack of a program.
const (
	stackKey    = -16            // the key
	stackKind   = stackKey + 4   // its field Kind
	stackDetail = stackKey + 8   // its field Detail
	stackFirst  = -24            // the value of a new entry
	stackArg    = -32            // an argument of a system call
	offsetRSI   = 13 * 8         // second argument in struct pt_regs (arch/x86/include/asm/ptrace.h)
	argNumber   = 8              // args[1] of sys_enter: number of the system call
	argRegs     = 0              // args[0] of sys_enter: struct pt_regs *
	ioctlNumber = unix.SYS_IOCTL // number of ioctl
	register    = asm.R6         // keeps the context; calls preserve it
	number      = asm.R7         // keeps the number of the system call
	processBits = 32             // the upper half of the helper's result is the process id
)

// begin returns instructions that put the present process into the key, and the context into a
// register.
func begin() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(register, asm.R1),
		asm.FnGetCurrentPidTgid.Call(),
		asm.RSh.Imm(asm.R0, processBits), // the lower half is the thread id
		asm.StoreMem(asm.RFP, stackKey, asm.R0, asm.Word),
		asm.StoreImm(asm.RFP, stackDetail, 0, asm.Word),
	}
}

// simple returns a program that counts events of one kind.
func (c *Counter) simple(kind uint32) asm.Instructions {
	return append(append(begin(), c.addOne(kind)...), asm.Mov.Imm(asm.R0, 0), asm.Return())
}

// calls returns the program for sys_enter. It counts each system call in total and by its number,
// and each ioctl by its request.
func (c *Counter) calls() asm.Instructions {
	p := append(begin(), c.addOne(kindCall)...)
	p = append(p, asm.LoadMem(number, register, argNumber, asm.DWord),
		asm.StoreMem(asm.RFP, stackDetail, number, asm.Word))
	p = append(p, c.addOne(kindNumber)...)
	p = append(p, asm.JNE.Imm(number, ioctlNumber, "done"),
		// probe_read_kernel(stack, 8, &regs->rsi)
		asm.LoadMem(asm.R3, register, argRegs, asm.DWord),
		asm.Add.Imm(asm.R3, offsetRSI),
		asm.Mov.Reg(asm.R1, asm.RFP),
		asm.Add.Imm(asm.R1, stackArg),
		asm.Mov.Imm(asm.R2, 8),
		asm.FnProbeReadKernel.Call(),
		asm.JNE.Imm(asm.R0, 0, "done"),
		asm.LoadMem(asm.R1, asm.RFP, stackArg, asm.Word),
		asm.StoreMem(asm.RFP, stackDetail, asm.R1, asm.Word))
	p = append(p, c.addOne(kindIoctl)...)
	return append(p, asm.Mov.Imm(asm.R0, 0).WithSymbol("done"), asm.Return())
}

// addOne returns instructions that add one to the count of the key on the stack, with the given
// kind.
func (c *Counter) addOne(kind uint32) asm.Instructions {
	fresh, end := fmt.Sprintf("new%d", kind), fmt.Sprintf("end%d", kind)
	return asm.Instructions{
		asm.StoreImm(asm.RFP, stackKind, int64(kind), asm.Word),
		asm.LoadMapPtr(asm.R1, c.counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stackKey),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, fresh),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Ja.Label(end),

		asm.Mov.Imm(asm.R1, 1).WithSymbol(fresh),
		asm.StoreMem(asm.RFP, stackFirst, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, c.counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stackKey),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, stackFirst),
		// If two threads add the new entry at the same time, one event is not counted.
		asm.Mov.Imm(asm.R4, int32(ebpf.UpdateNoExist)),
		asm.FnMapUpdateElem.Call(),

		asm.Mov.Imm(asm.R0, 0).WithSymbol(end),
	}
}

func (c *Counter) lookup(k key) (n uint64, err error) {
	err = c.counts.Lookup(k, &n)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	if err != nil {
		return 0, fmt.Errorf("read counts: %w", err)
	}
	return n, nil
}

// Read returns the counts of a running process. Page faults are counted from the start of the
// process, and all other operations from New on.
func (c *Counter) Read(pid int) (counts Counts, err error) {
	for kind, into := range map[uint32]*uint64{
		kindSwitch: &counts.Switches, kindCall: &counts.Calls, kindExit: &counts.Exits} {
		if *into, err = c.lookup(key{Process: uint32(pid), Kind: kind}); err != nil {
			return counts, err
		}
	}
	counts.Faults, err = pageFaults(pid)
	return counts, err
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

// Children returns the process ids of this process's child processes.
func Children() (pids []int, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		p, err := os.ReadFile(path)
		if err != nil || parent(string(p)) != os.Getpid() {
			continue // the process has ended, or is not a child of this process
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// parent returns the process id of the parent, from /proc/<pid>/stat (proc_pid_stat(5)). It returns
// 0 if it cannot parse stat.
func parent(stat string) int {
	fields := statFields(stat)
	if len(fields) < 2 {
		return 0
	}
	pid, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return pid
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
