package lab

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestCounter(t *testing.T) {
	c, err := NewCounter()
	if err != nil {
		t.Skip("the kernel does not let this process count: ", err)
	}
	defer c.Close()
	before, err := c.Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const calls, pages = 1000, 100
	for range calls {
		unix.Getppid()
	}
	p, err := unix.Mmap(-1, 0, pages<<12, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(p)
	_ = unix.Madvise(p, unix.MADV_NOHUGEPAGE)
	for i := 0; i < len(p); i += 1 << 12 {
		p[i] = 1
	}
	time.Sleep(time.Millisecond) // gives up the CPU
	after, err := c.Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if did := after.Sub(before); did.Calls < calls || did.Faults < pages || did.Switches == 0 || did.Exits != 0 {
		t.Errorf("counted %+v", did)
	}
}
