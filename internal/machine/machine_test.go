package machine

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/boot"
	"github.com/forkd/forkd/internal/kvm"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

type logBuf struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *logBuf) WriteByte(c byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.WriteByte(c)
}
func (l *logBuf) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.String()
}

func TestBootPlay(t *testing.T) {
	path := os.Getenv("KERNEL")
	if path == "" {
		t.Skip("KERNEL unset")
	}
	sys, err := kvm.Open()
	if err != nil {
		t.Fatal(err)
	}
	var log logBuf
	exited := make(chan vmmproto.Exit, 1)
	m, err := New(Config{KVM: sys, Shape: vmmproto.Machine{MemoryBytes: 256 << 20, VCPUs: 1, Template: "x86-64-v2"},
		Console: &log, Exited: func(e vmmproto.Exit) { exited <- e }})
	if err != nil {
		t.Fatal(err)
	}
	k, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := strings.Replace(boot.Cmdline("norandmaps"), "quiet", "earlyprintk=ttyS0", 1)
	if err := m.Boot(BootConfig{Kernel: k, Cmdline: cmd}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-exited:
		t.Logf("exit %v after %v", e, time.Since(start))
	case <-time.After(20 * time.Second):
		t.Logf("still running")
		m.Pause()
		r, _ := m.cpus.all[0].kvm.Regs()
		t.Logf("regs %+v", r)
	}
	st, _ := m.Stats()
	t.Logf("stats %+v\n%s", st, log.text())
}
