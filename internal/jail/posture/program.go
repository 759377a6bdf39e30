package posture

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
)

// TestProgram returns the path of the running test program, compiled without cgo like the product.
// (With cgo, libc creates threads by other system calls.) If the running program has cgo,
// TestProgram compiles the package in the working directory to a program in dir.
func TestProgram(dir string) (string, error) {
	info, ok := debug.ReadBuildInfo()
	if ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "CGO_ENABLED", Value: "0"}) {
		return os.Executable()
	}
	path := filepath.Join(dir, "program.test")
	build := exec.Command("go", "test", "-c", "-o", path, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build a test program without cgo: %w\n%s", err, out)
	}
	return path, nil
}

// SharedProgram returns a function like TestProgram, and a function that removes the program. All
// tests of a package can share the program, because compiling it takes seconds.
func SharedProgram() (program func() (string, error), remove func()) {
	var dir string
	program = sync.OnceValues(func() (path string, err error) {
		if dir, err = os.MkdirTemp("", "test-program"); err == nil {
			err = os.Chmod(dir, 0o755) // the program runs as other users
		}
		if err != nil {
			return "", err
		}
		return TestProgram(dir)
	})
	return program, func() { os.RemoveAll(dir) }
}
