package stub

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/forkd/forkd/internal/vmm/boot"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

var forkd = Layout{Register: uint32(boot.VirtioBase), Generation: uint32(boot.VMGenIDAddr)}

func TestELFReadersAgree(t *testing.T) {
	f, err := elf.NewFile(bytes.NewReader(forkd.Kernel()))
	if err != nil {
		t.Fatal(err)
	}
	if f.Machine != elf.EM_X86_64 || f.Type != elf.ET_EXEC || f.Entry != uint64(loadAddr) || len(f.Progs) != 1 {
		t.Fatalf("%+v", f.FileHeader)
	}
	got, err := io.ReadAll(f.Progs[0].Open())
	if err != nil || !bytes.Equal(got, forkd.image()) {
		t.Fatalf("segment has %d bytes, want the image's %d (%v)", len(got), imageSize, err)
	}
}

func TestLoaderAccepts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stub")
	if err := os.WriteFile(path, Kernel(), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, err := guestmem.New(64 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	state, err := boot.Load(mem, boot.Params{Kernel: f, VCPUs: 1})
	if err != nil || state.RIP != uint64(loadAddr) {
		t.Fatalf("entry %#x, want %#x: %v", state.RIP, loadAddr, err)
	}
}

// The program for containers answers and then waits.
func TestProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "answer")
	if err := os.WriteFile(path, Program(), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 1)
	if _, err := io.ReadFull(out, said); err != nil || said[0] != Answer {
		t.Errorf("it said %q, %v", said, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error("it did not wait: ", err)
	}
	rest, _ := io.ReadAll(out)
	_ = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || len(rest) > 0 {
		t.Errorf("it ended by itself (%v), and said %q more", cmd.ProcessState, rest)
	}
}

// A Multiboot loader can find the header, which says where to load the image.
func TestMultiboot(t *testing.T) {
	m := forkd.Multiboot()
	field := func(i int) uint32 { return binary.LittleEndian.Uint32(m[bootHeader+4*i:]) }
	if bootHeader%4 != 0 || field(0) != 0x1badb002 || field(0)+field(1)+field(2) != 0 {
		t.Errorf("header %x", m[bootHeader:bootHeader+32])
	}
	if field(3)-field(4) != bootHeader || field(4) != loadAddr || field(5)-field(4) != uint32(len(m)) || field(6) <= Note {
		t.Errorf("the image of %d bytes is at %#x to %#x, its header at %#x", len(m), field(4), field(5), field(3))
	}
	if n := len(enter64()); field(7) != loadAddr+bootCode || bootCode+n > bootHeader {
		t.Errorf("it is entered at %#x, and the code for that has %d bytes", field(7), n)
	}
}

// The parts of the code do not overlap. The page tables map all memory that the code uses.
func TestLayout(t *testing.T) {
	other := Layout{Register: 0xfeb00000, Generation: Note}
	for _, l := range []Layout{forkd, other} {
		if n := len(entryCode()); n > userCode {
			t.Errorf("the entry code has %d bytes, %d are free", n, userCode)
		}
		if n := len(l.userLoop()); n > trapCode-userCode {
			t.Errorf("the user code has %d bytes, %d are free", n, trapCode-userCode)
		}
		m := l.image()
		entry := func(at int) uint64 { return binary.LittleEndian.Uint64(m[at:]) }
		window := uint64(l.Register)
		if got := entry(dirDevices+int(window>>21%512)*8) &^ 0xfff; got != window&^(2<<20-1) {
			t.Errorf("the device page maps %#x, the window is at %#x", got, window)
		}
		if l.Generation+8 > 2<<20 || uint64(loadAddr)+imageSize > 2<<20 {
			t.Error("the RAM page of 2 MiB does not reach the generation and the image")
		}
	}
}
