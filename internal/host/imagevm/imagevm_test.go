package imagevm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd/forkd/internal/host/helpervm"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/imageproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// site is a Filler with fake VMs, and a valid request.
type site struct {
	*Filler
	vmms *vmfake.VMMs
	dir  string
	req  Request
}

func newSite(t *testing.T, guest func(*vmfake.VMM, net.Conn)) *site {
	t.Helper()
	s := &site{dir: t.TempDir(), vmms: vmfake.NewBuilders(guest)}
	run, kernel := filepath.Join(s.dir, "run"), filepath.Join(s.dir, "kernel")
	if err := errors.Join(os.Mkdir(run, 0o700), os.WriteFile(kernel, make([]byte, 4096), 0o600)); err != nil {
		t.Fatal(err)
	}
	s.Filler = New(Config{Config: helpervm.Config{VMMs: s.vmms, RunDir: run, Template: "host"},
		Initrd: os.Open, // no test reads the initramfs
		Room:   func(uint64, *os.File) error { return nil }})
	s.req = Request{Kernel: kernel, Size: 64 << 20, Disk: s.disk(t), Stream: stream("content")}
	return s
}

func (s *site) disk(t *testing.T) *os.File {
	t.Helper()
	f, err := os.CreateTemp(s.dir, "disk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// checkClean fails the test if a VM or one of its files is left.
func (s *site) checkClean(t *testing.T) {
	t.Helper()
	if n := s.vmms.Count(); n != 0 {
		t.Errorf("%d VMs are left", n)
	}
	if left, err := os.ReadDir(filepath.Join(s.dir, "run")); err != nil || len(left) > 0 {
		t.Errorf("in the directory of VMs: %v, %v", left, err)
	}
}

// stream returns the stream of an image with one layer.
func stream(layer string) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error {
		if err := imageproto.WriteHeader(w, imageproto.Header{Layers: make([]imageproto.Layer, 1)}); err != nil {
			return err
		}
		return imageproto.WriteLayer(w, strings.NewReader(layer))
	}
}

// endless writes a stream without an end, until its context ends or its writer returns an error.
func endless(ctx context.Context, w io.Writer) error {
	if err := imageproto.WriteHeader(w, imageproto.Header{Layers: make([]imageproto.Layer, 1)}); err != nil {
		return err
	}
	for {
		if _, err := w.Write(append([]byte("\x00\x10\x00\x00"), make([]byte, 4096)...)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// takes(conn) reads a stream from conn, and returns the content of its layer.
func takes(conn net.Conn) ([]byte, error) {
	r := imageproto.NewReader(conn)
	if _, err := r.Header(); err != nil {
		return nil, err
	}
	return io.ReadAll(r.Layer())
}

// The VM gets the stream. When the VM starts, the disk has an empty file system of the requested
// size.
func TestFill(t *testing.T) {
	var got []byte
	s := newSite(t, func(b *vmfake.VMM, conn net.Conn) {
		if w := b.Limits().CPUWeight; w != 20 {
			t.Errorf("the VM has the weight %d", w)
		}
		var err error
		got, err = takes(conn)
		_ = imageproto.WriteAnswer(conn, err)
	})
	if err := s.Fill(t.Context(), s.req); err != nil {
		t.Fatal(err)
	}
	if string(got) != "content" {
		t.Errorf("the VM got %q", got)
	}
	st, err := s.req.Disk.Stat()
	magic := make([]byte, 2)
	if err == nil {
		_, err = s.req.Disk.ReadAt(magic, 1024+0x38)
	}
	if err != nil || st.Size() != s.req.Size || !bytes.Equal(magic, []byte{0x53, 0xef}) {
		t.Errorf("a disk of %d bytes with the magic %x, %v", st.Size(), magic, err)
	}
	s.checkClean(t)
}

// A refusal stops the stream. The text of the refusal comes from a VM, so it is bounded and made
// printable.
func TestRefusedStreams(t *testing.T) {
	text := "layer 2: archive entry \"a\": \x1b[31mno\n" + strings.Repeat("x", 5000)
	s := newSite(t, func(_ *vmfake.VMM, conn net.Conn) { _ = imageproto.WriteAnswer(conn, errors.New(text)) })
	s.req.Stream = endless
	err := s.Fill(t.Context(), s.req)
	var refused *invalid.Error
	if !errors.As(err, &refused) || refused.Field != "image" ||
		!strings.HasPrefix(refused.Reason, `layer 2: archive entry "a": [31mno`) || len(refused.Reason) > maxReason {
		t.Errorf("%#v", err)
	}
	s.checkClean(t)
}

func TestVMsThatFail(t *testing.T) {
	boom := errors.New("boom")
	for what, c := range map[string]struct {
		guest  func(*vmfake.VMM, net.Conn)
		stream func(context.Context, io.Writer) error
		want   string
	}{
		"the VM ends while it takes the stream": {func(b *vmfake.VMM, conn net.Conn) {
			_, _ = io.CopyN(io.Discard, conn, 10000)
			b.End(vm.Exit{Reason: vm.ExitPanic, Detail: "the guest panicked"})
		}, endless, "the guest panicked"},
		"the VM hangs up": {func(_ *vmfake.VMM, conn net.Conn) {}, endless, helpervm.ErrLost.Error()},
		"no answer":       {func(_ *vmfake.VMM, conn net.Conn) { _, _ = takes(conn) }, stream("x"), "unexpected EOF"},
		"no JSON": {func(_ *vmfake.VMM, conn net.Conn) {
			_, _ = takes(conn)
			_, _ = io.WriteString(conn, "x\n")
		}, stream("x"), "invalid character"},
		"an endless answer": {func(_ *vmfake.VMM, conn net.Conn) {
			for {
				if _, err := conn.Write(make([]byte, 4096)); err != nil {
					return
				}
			}
		}, endless, helpervm.ErrLost.Error()},
		"the source fails": {func(_ *vmfake.VMM, conn net.Conn) { _, _ = takes(conn) },
			func(context.Context, io.Writer) error { return boom }, "boom"},
	} {
		s := newSite(t, c.guest)
		s.req.Stream = c.stream
		err := s.Fill(t.Context(), s.req)
		var refused *invalid.Error
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, &refused) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
		if err != nil && !strings.Contains(err.Error(), "Kernel panic - not syncing: x") {
			t.Errorf("%s: the error lacks the end of the console: %v", what, err)
		}
		s.checkClean(t)
	}
	s := newSite(t, nil)
	s.vmms.SpawnErr = boom
	if err := s.Fill(t.Context(), s.req); !errors.Is(err, boom) {
		t.Errorf("no VMM: %v", err)
	}
}

// Every wait of a fill has a limit. After the limit, the context of the stream's source ends.
func TestFillsThatStall(t *testing.T) {
	silent := func(ctx context.Context, _ io.Writer) error { <-ctx.Done(); return ctx.Err() }
	slow := func(ctx context.Context, w io.Writer) error {
		for {
			if _, err := w.Write([]byte("x")); err != nil {
				return err
			}
			time.Sleep(stallTime / 2)
		}
	}
	takesAll := func(_ *vmfake.VMM, conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }
	for want, c := range map[string]struct {
		guest  func(*vmfake.VMM, net.Conn)
		stream func(context.Context, io.Writer) error
		limit  time.Duration
	}{
		"has not come up within 5m0s":             {nil, endless, bootTime},
		"has taken nothing for 10m0s":             {func(b *vmfake.VMM, _ net.Conn) { <-b.Done() }, endless, stallTime},
		"has not answered for 10m0s":              {takesAll, stream("x"), stallTime},
		"nothing of the image has arrived for 10": {takesAll, silent, stallTime},
		"the image is not unpacked after 2h0m0s":  {takesAll, slow, fillTime + stallTime},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, c.guest)
			s.req.Stream = c.stream
			begin := time.Now()
			err := s.Fill(t.Context(), s.req)
			if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) ||
				!strings.Contains(err.Error(), want) || took > c.limit+2*exitTime {
				t.Errorf("%v after %v, want %q", err, took, want)
			}
			s.checkClean(t)
		})
	}
}

// If a VM is paused because the disk is full, it is killed at once.
func TestFillFailsOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, func(b *vmfake.VMM, conn net.Conn) {
			b.Stall()
			<-b.Done()
		})
		s.req.Stream = endless
		begin := time.Now()
		if err := s.Fill(t.Context(), s.req); !errors.Is(err, helpervm.ErrFull) || !errors.Is(err, syscall.ENOSPC) ||
			time.Since(begin) > time.Minute {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		s.checkClean(t)
	})
}

// Without room on the host nothing is written, and no VM is started.
func TestFillNeedsRoom(t *testing.T) {
	s := newSite(t, nil)
	full := errors.New("no room")
	s.cfg.Room = func(memory uint64, disk *os.File) error {
		if memory != helpervm.MemoryBytes || disk != s.req.Disk {
			t.Errorf("room for %d bytes of memory and the disk %v", memory, disk)
		}
		return full
	}
	if err := s.Fill(t.Context(), s.req); !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
	if st, err := s.req.Disk.Stat(); err != nil || st.Size() != 0 || s.vmms.Spawned != 0 {
		t.Errorf("a disk of %d bytes, %d VMs, %v", st.Size(), s.vmms.Spawned, err)
	}
}

// deaf is a connection to a guest that has stopped reading, but keeps its own direction open.
type deaf struct{ net.Conn }

func (deaf) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestFillEndsWithAGuestThatTakesNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		defer theirs.Close()
		ctx, w := newWatchdog(t.Context())
		defer w.end()
		begin := time.Now()
		err := pass(ctx, w, deaf{ours}, stream("x"))
		if !errors.Is(err, helpervm.ErrLost) || time.Since(begin) > time.Minute {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// halves is a connection that reports when its writing half is closed.
type halves struct {
	net.Conn
	ended chan struct{}
}

func (h halves) CloseWrite() error { close(h.ended); return nil }

// If a stream is shorter than its header says, the guest sees the end of the stream.
func TestStreamsHaveAnEnd(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	conn := halves{ours, make(chan struct{})}
	go func() {
		defer theirs.Close()
		_, _ = imageproto.NewReader(theirs).Header()
		<-conn.ended
		_ = imageproto.WriteAnswer(theirs, io.ErrUnexpectedEOF)
	}()
	ctx, w := newWatchdog(t.Context())
	defer w.end()
	err := pass(ctx, w, conn, func(_ context.Context, out io.Writer) error {
		return imageproto.WriteHeader(out, imageproto.Header{Layers: make([]imageproto.Layer, 1)})
	})
	if !isRefused(err) || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("%v", err)
	}
}

func TestFillEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := newSite(t, func(b *vmfake.VMM, conn net.Conn) {
		cancel()
		<-b.Done()
	})
	s.req.Stream = endless
	if err := s.Fill(ctx, s.req); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	s.checkClean(t)
}

// A client has at most one VM at a time. Another client does not wait for that VM.
func TestClientsTakeTurns(t *testing.T) {
	release := make(chan struct{})
	s := newSite(t, func(_ *vmfake.VMM, conn net.Conn) {
		_, err := takes(conn)
		<-release
		_ = imageproto.WriteAnswer(conn, err)
	})
	ended := make(chan error, 3)
	fill := func(client string) {
		req := s.req
		req.Disk = s.disk(t)
		go func() {
			leave, err := s.Wait(t.Context(), client)
			if err == nil {
				err = s.Fill(t.Context(), req)
				leave()
			}
			ended <- err
		}()
	}
	fill("me")
	fill("me")
	s.waitFor(t, 1)
	fill("you")
	s.waitFor(t, 2)
	if n := s.vmms.Count(); n != 2 {
		t.Errorf("%d VMs, want one for each client", n)
	}
	if _, err := s.Enter("other"); !errors.Is(err, ErrNoPlace) {
		t.Errorf("a third client: %v", err)
	}
	close(release)
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	s.checkClean(t)
}

func (s *site) waitFor(t *testing.T, vms int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); s.vmms.Count() < vms; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d VMs, want %d", s.vmms.Count(), vms)
		}
	}
}

func TestBadRequestsNameTheField(t *testing.T) {
	s := newSite(t, nil)
	for want, change := range map[string]func(*Request){
		"disk_mib: 0 bytes: want 16 to 1048576 MiB":                  func(r *Request) { r.Size = 0 },
		"disk_mib: 67108865 bytes":                                   func(r *Request) { r.Size++ },
		"disk_mib: 2199023255552 bytes":                              func(r *Request) { r.Size = 2 << 40 },
		`kernel: "kernel": want the absolute path of a file`:         func(r *Request) { r.Kernel = "kernel" },
		`kernel: "/nonexistent": not a regular file on the daemon's`: func(r *Request) { r.Kernel = "/nonexistent" },
		fmt.Sprintf("kernel: %q: not a regular file", s.dir):         func(r *Request) { r.Kernel = s.dir },
	} {
		req := s.req
		change(&req)
		err := s.Fill(t.Context(), req)
		var wrong *invalid.Error
		if !errors.As(err, &wrong) || !strings.Contains(wrong.Field+": "+wrong.Reason, want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if s.vmms.Spawned != 0 {
		t.Errorf("%d VMs were started", s.vmms.Spawned)
	}
}
