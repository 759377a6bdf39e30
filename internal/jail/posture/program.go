package posture

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
)

// TestProgram returns the path of the running test program, built without cgo like the product.
// With cgo, libc makes the threads, which make other calls. If needed, it builds the program in
// dir, for the package in the working directory.
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
