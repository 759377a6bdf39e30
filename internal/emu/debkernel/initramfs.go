package debkernel

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/forkd/forkd/internal/build/initramfs"
	"github.com/forkd/forkd/internal/build/kmod"
)

// AddModules adds modules and their dependencies to the directory dir of an initramfs. The files
// are called NUMBER-NAME.ko, and must be loaded in the order of their names. The modules have no
// signatures, because an emulated machine would need about one second to check them, and the kernel
// is from the same package.
func (k Kernel) AddModules(w *initramfs.Writer, dir string, names []string) error {
	collected, err := kmod.Collect(k.ModulesDir, names)
	if err != nil {
		return err
	}
	for i, mod := range collected {
		if err := w.File(fmt.Sprintf("%s/%03d-%s.ko", dir, i, mod.Name), 0o644, kmod.Unsigned(mod.Data)); err != nil {
			return err
		}
	}
	return nil
}

// AddBusybox adds the program at path as busybox, and links in /bin for all of its commands.
func AddBusybox(w *initramfs.Writer, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read busybox: %w", err)
	}
	list, err := exec.Command(path, "--list").Output()
	if err != nil {
		return fmt.Errorf("list busybox commands: %w", err)
	}
	if err := w.File("/bin/busybox", 0o755, data); err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(list)) {
		if name == "busybox" || strings.Contains(name, "/") {
			continue
		}
		if err := w.Symlink("/bin/"+name, "busybox"); err != nil {
			return err
		}
	}
	return nil
}
