package kvm

import (
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// After EAGAIN, only a vCPU that waits for its start-up IPI may be run again. Any other vCPU would
// return EAGAIN for ever.
func TestRunTakesEAGAINFromAWaitingVCPUOnly(t *testing.T) {
	state := func(s uint32) func() (MPState, error) {
		return func() (MPState, error) { return MPState{State: s}, nil }
	}
	c := &VCPU{id: 1, waiting: true}
	// The IPI arrives at the third EAGAIN.
	for i, s := range []uint32{MPStateUninitialized, MPStateUninitialized, MPStateRunnable} {
		if err := c.runError(unix.EAGAIN, state(s)); !errors.Is(err, ErrKicked) {
			t.Fatalf("EAGAIN %d of a waiting vCPU: %v, want ErrKicked", i, err)
		}
	}
	for _, c := range []*VCPU{c, {id: 0}} {
		err := c.runError(unix.EAGAIN, state(MPStateRunnable))
		if !errors.Is(err, unix.EAGAIN) || errors.Is(err, ErrKicked) {
			t.Fatalf("EAGAIN of vCPU %d, which runs: %v, want an error", c.id, err)
		}
		for _, limit := range []string{"pids.max", "RLIMIT_NPROC"} {
			if !strings.Contains(err.Error(), limit) {
				t.Errorf("%q does not name %s", err, limit)
			}
		}
	}
	if err := c.runError(unix.EINTR, state(MPStateRunnable)); !errors.Is(err, ErrKicked) {
		t.Errorf("EINTR: %v, want ErrKicked", err)
	}
	if err := c.runError(unix.EFAULT, state(MPStateRunnable)); !errors.Is(err, unix.EFAULT) {
		t.Errorf("EFAULT: %v", err)
	}
	if err := (&VCPU{waiting: true}).runError(unix.EAGAIN, func() (MPState, error) {
		return MPState{}, unix.EIO
	}); !errors.Is(err, unix.EIO) {
		t.Errorf("a state that cannot be read: %v", err)
	}
}

// Run handles an access itself only if the access has the width and the direction of the register.
func TestServeRegister(t *testing.T) {
	if serveNone {
		t.Skip("with the race detector none is served")
	}
	var word atomic.Uint32
	const status, ack = 0xd0000060, 0xd0000064
	c := &VCPU{head: &runHead{}}
	c.SetRegisters([]Register{{GPA: status, Word: &word}, {GPA: ack, Word: &word, Clear: true}})
	for _, x := range []struct {
		name   string
		reason uint32
		flags  uint16
		gpa    uint64
		length uint32
		write  uint8
		data   uint32
		served bool
		after  uint32 // value of the word afterwards; before, the value is 7
	}{
		{"load", ExitMMIO, 0, status, 4, 0, 0, true, 7},
		{"clear two bits", ExitMMIO, 0, ack, 4, 1, 5, true, 2},
		{"clear none", ExitMMIO, 0, ack, 4, 1, 8, true, 7},
		{"store to what is loaded", ExitMMIO, 0, status, 4, 1, 7, false, 7},
		{"load of what is stored to", ExitMMIO, 0, ack, 4, 0, 0, false, 7},
		{"narrow load", ExitMMIO, 0, status, 1, 0, 0, false, 7},
		{"wide store", ExitMMIO, 0, ack, 8, 1, 7, false, 7},
		{"other register", ExitMMIO, 0, status + 0x10, 4, 0, 0, false, 7},
		{"port", ExitIO, 0, status, 4, 0, 0, false, 7},
		{"with a bus lock", ExitMMIO, runBusLock, status, 4, 0, 0, false, 7},
	} {
		word.Store(7)
		before := c.Served()
		c.head.Exit_reason, c.head.Flags = x.reason, x.flags
		e := (*mmioExit)(unsafe.Pointer(&c.head.Exit))
		*e = mmioExit{Phys_addr: x.gpa, Len: x.length, Is_write: x.write}
		binary.LittleEndian.PutUint32(e.Data[:], x.data)
		served := c.serveRegister()
		if served != x.served || word.Load() != x.after || (c.Served() != before) != x.served {
			t.Errorf("%s: served %v, %d in all, the word is %d", x.name, served, c.Served(), word.Load())
		}
		if got := binary.LittleEndian.Uint32(e.Data[:]); x.served && x.write == 0 && got != 7 {
			t.Errorf("%s: loaded %d", x.name, got)
		}
	}
}
