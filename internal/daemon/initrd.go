package daemon

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/build/initramfs"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/host/diff"
	"github.com/forkd/forkd/internal/host/volfiles"
)

// makeInitrd makes an initramfs in memory, with a program of this build as its init. A VMM that
// receives the file must not be able to write to it: the store copies the file for all later boots.
func makeInitrd(kernel, program string) (*os.File, error) {
	init, err := embedded.Open(program)
	if err != nil {
		return nil, err
	}
	p, err := image.Initramfs(kernel, init)
	if err != nil {
		return nil, err
	}
	f, err := sealed(func(w io.Writer) error {
		_, err := w.Write(p)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make initramfs for kernel %s: %w", kernel, err)
	}
	return f, nil
}

// addDiff makes an initramfs that has forkd-diff in addition to the files of base.
func addDiff(base *os.File) (*os.File, error) { return addProgram(base, embedded.Diff, diff.Program) }

// addFiles makes an initramfs that has forkd-files in addition to the files of base.
func addFiles(base *os.File) (*os.File, error) {
	return addProgram(base, embedded.Files, volfiles.Program)
}

// addProgram makes an initramfs that has an embedded program in addition to the files of base. The
// program is in an archive of its own after base: Linux unpacks several archives one after the
// other. The base may come from another host and have any size, so it is copied in small parts.
func addProgram(base *os.File, name, path string) (*os.File, error) {
	program, err := embedded.Open(name)
	if err != nil {
		return nil, err
	}
	st, err := base.Stat()
	if err != nil {
		return nil, err
	}
	f, err := sealed(func(out io.Writer) error {
		if _, err := io.Copy(out, io.NewSectionReader(base, 0, st.Size())); err != nil {
			return err
		}
		// Linux skips zeros between archives, up to a multiple of 4.
		if _, err := out.Write(make([]byte, (4-st.Size()%4)%4)); err != nil {
			return err
		}
		w := initramfs.NewWriter(out)
		_ = w.File(path, 0o755, program) // Close returns the error
		return w.Close()
	})
	if err != nil {
		return nil, fmt.Errorf("add %s to initramfs %s: %w", name, base.Name(), err)
	}
	return f, nil
}

// sealed returns a file in memory, open for reading. It calls write() to write the content.
// Afterwards no process can change the file.
func sealed(write func(io.Writer) error) (*os.File, error) {
	fd, err := unix.MemfdCreate("forkd-initrd", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "forkd-initrd")
	defer f.Close()
	if err := write(f); err != nil {
		return nil, err
	}
	const all = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, all); err != nil {
		return nil, err
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
}
