package daemon

import (
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

// A process that receives an initramfs can neither write to the file nor make a writable mapping of
// the file.
func TestInitramfsIsSealed(t *testing.T) {
	f, err := sealed(func(w io.Writer) error {
		_, err := io.WriteString(w, "content")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if p, err := io.ReadAll(f); string(p) != "content" || err != nil {
		t.Errorf("read %q, %v", p, err)
	}
	if _, err := f.WriteAt([]byte("C"), 0); err == nil {
		t.Error("the file can be written")
	}
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0); err != nil || flags&unix.O_ACCMODE != unix.O_RDONLY {
		t.Errorf("the file is open with flags %#x, %v", flags, err)
	}
	if seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_WRITE == 0 ||
		seals&unix.F_SEAL_SEAL == 0 {
		t.Errorf("the file has seals %#x, %v", seals, err)
	}
}
