package machine

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/kvm"
)

// vcpus runs the vCPUs of a machine, each on its own OS thread. It pauses and resumes all of them
// together.
//
//	paused ──resume──▶ running ──pause──▶ paused
//	   └───────close──────┴────▶ closed
type vcpus struct {
	exit func(c *kvm.VCPU) error // handles one exit; an error ends the vCPU's thread
	fail func(error)             // called once for each vCPU thread that ends with an error

	gate kvm.Gate // shut while the machine is paused

	mu      sync.Mutex
	cond    sync.Cond
	all     []*vcpu
	paused  bool
	closed  bool
	parked  int // number of threads that wait at the gate
	threads sync.WaitGroup
	lower   sync.Once // calls comeAfterHost once, when the time headStart has passed since the first resume
}

type vcpu struct {
	kvm   *kvm.VCPU
	first bool // whether this is vCPU 0 of its machine
	tid   int
	dead  bool // whether the vCPU's thread has ended
	exits atomic.Uint64
}

// newVCPUs starts a thread for each vCPU. It takes ownership of cpus, which are paused.
func newVCPUs(cpus []*kvm.VCPU, exit func(*kvm.VCPU) error, fail func(error)) *vcpus {
	v := &vcpus{exit: exit, fail: fail, paused: true}
	v.cond.L = &v.mu
	for _, c := range cpus {
		u := &vcpu{kvm: c, first: len(v.all) == 0}
		v.all = append(v.all, u)
		v.threads.Go(func() { v.thread(u) })
	}
	v.mu.Lock()
	v.waitParkedLocked()
	v.mu.Unlock()
	return v
}

// vcpuNice is the nice value of vCPU threads, relative to the other threads of the process and to
// the daemon that started the process. If guests use all CPU time, the daemon and the devices still
// get nine times as much CPU time as each vCPU (sched_prio_to_weight, kernel/sched/core.c). On an
// idle CPU the nice value has no effect.
const vcpuNice = 10

// headStart is the time for which a machine runs before its vCPUs get a lower priority. During this
// time a new fork competes with other guests at normal priority, so busy guests do not delay the
// fork.
const headStart = time.Second

// comeAfterHost lowers the priority of the vCPUs' threads. Linux permits every process to do so. If
// the change fails, for example in a jail, the guest runs at normal priority.
func (v *vcpus) comeAfterHost() {
	v.mu.Lock()
	defer v.mu.Unlock()
	const zero = 20 // value for nice 0: the system call returns 20 - nice (getpriority(2))
	for _, u := range v.all {
		if u.dead {
			continue // the thread may have ended, and another thread may have its id
		}
		if raw, err := unix.Getpriority(unix.PRIO_PROCESS, u.tid); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, u.tid, zero-raw+vcpuNice)
		}
	}
}

func (v *vcpus) thread(u *vcpu) {
	runtime.LockOSThread() // KVM requires that a vCPU always runs on the same thread
	v.mu.Lock()
	u.tid = unix.Gettid()
	v.mu.Unlock()
	err := v.loop(u)
	v.mu.Lock()
	u.dead = true
	v.cond.Broadcast()
	v.mu.Unlock()
	if err != nil {
		v.fail(err)
	}
}

func (v *vcpus) loop(u *vcpu) error {
	if u.first {
		if err := u.kvm.Prepare(); err != nil { // now, because a restore should not wait for Prepare
			return err
		}
	}
	for parked := v.park(); ; {
		var err error
		if parked {
			err = u.kvm.RunAt(&v.gate)
		} else {
			err = u.kvm.Run()
		}
		parked = false
		switch {
		case err == nil:
			u.exits.Add(1)
			if err := v.exit(u.kvm); err != nil {
				return err
			}
		case !errors.Is(err, kvm.ErrKicked):
			return fmt.Errorf("%w (exit reason %d)", err, u.kvm.ExitReason())
		case v.closing():
			return nil
		default:
			parked = v.park()
		}
	}
}

// park reports whether the vCPU must wait at the gate because the machine is paused. If so, park
// counts the vCPU as parked.
func (v *vcpus) park() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.paused {
		v.parked++
		v.cond.Broadcast()
	}
	return v.paused
}

func (v *vcpus) closing() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.closed
}

// pause stops the vCPUs. It returns when no vCPU runs guest code and every exit has been handled.
func (v *vcpus) pause() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.paused {
		return
	}
	v.paused = true
	v.gate.Shut()
	v.kickLocked()
	v.waitParkedLocked()
}

// kickLocked makes every vCPU leave its guest and call park. A vCPU that is handling an exit
// completes its I/O in the next Run, which then also returns.
func (v *vcpus) kickLocked() {
	for _, u := range v.all {
		u.kvm.SetImmediateExit(true)
		if u.tid != 0 && !u.dead {
			_ = kvm.Kick(u.tid)
		}
	}
}

func (v *vcpus) waitParkedLocked() {
	for {
		waiting := v.parked
		for _, u := range v.all {
			if u.dead {
				waiting++
			}
		}
		if waiting == len(v.all) {
			v.gate.WaitArrived(v.parked)
			return
		}
		v.cond.Wait()
	}
}

// resume lets the vCPUs run. It returns when every thread is about to enter the guest. If notice is
// not nil, the last thread sends it.
func (v *vcpus) resume(notice *kvm.Notice) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.paused {
		return
	}
	v.paused = false
	for _, u := range v.all {
		u.kvm.SetImmediateExit(false)
	}
	v.gate.Open(v.parked, notice)
	v.gate.WaitPassed(v.parked)
	v.parked = 0
	v.lower.Do(func() { time.AfterFunc(headStart, v.comeAfterHost) })
}

// markPaused tells the guest that it was paused.
//
// Preconditions: the vCPUs are paused.
func (v *vcpus) markPaused() error {
	for _, u := range v.all {
		if err := u.kvm.MarkPaused(); err != nil {
			return err
		}
	}
	return nil
}

// setRegisters sets the registers whose accesses kvm.VCPU.Run handles itself.
//
// Preconditions: the vCPUs are paused.
func (v *vcpus) setRegisters(all []kvm.Register) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, u := range v.all {
		u.kvm.SetRegisters(all)
	}
}

// stats returns whether the vCPUs are paused, and the number of their exits to user space.
func (v *vcpus) stats() (paused bool, exits uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, u := range v.all {
		exits += u.exits.Load() + u.kvm.Served()
	}
	return v.paused, exits
}

// close ends the threads and closes the vCPUs. It must not be called on a vCPU's thread.
func (v *vcpus) close() error {
	v.mu.Lock()
	v.closed = true
	v.kickLocked()
	// The threads pass the gate and end. The vCPUs were kicked, so they do not enter their guests.
	v.gate.Open(v.parked, nil)
	v.mu.Unlock()
	v.threads.Wait()
	var errs []error
	for _, u := range v.all {
		errs = append(errs, u.kvm.Close())
	}
	return errors.Join(errs...)
}
