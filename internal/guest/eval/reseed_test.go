package eval

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/forkd/forkd/internal/cachedir"
)

// wheelsPython returns a python3 whose packages contain their own OpenSSL; see scripts/test-wheels.
func wheelsPython(t *testing.T) string { return filepath.Join(venv(t, "test-wheels"), "python3") }

// venv returns the directory that contains the programs of a Python environment. The script
// scripts/test-wheels makes these environments.
func venv(t *testing.T, name string) string {
	t.Helper()
	dir, err := cachedir.Dir()
	if err != nil {
		t.Skip(err)
	}
	if _, err := os.Stat(filepath.Join(dir, name, "done")); err != nil {
		t.Skipf("%s is missing; run scripts/test-wheels, which needs a package index", filepath.Join(dir, name))
	}
	return filepath.Join(dir, name, "bin")
}

// siblings copies a warm interpreter twice and returns the random numbers of each copy.
func siblings(t *testing.T, python, mode string) [2]map[string]string {
	t.Helper()
	driver := filepath.Join(t.TempDir(), "reseed.py")
	if err := os.WriteFile(driver, []byte(pythonReseed), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "testdata/siblings.py", driver, mode)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
	}
	out, err := cmd.Output()
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("PID namespaces are not allowed here: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var got [2]map[string]string
	lines := json.NewDecoder(strings.NewReader(string(out)))
	for i := range got {
		var copied struct {
			PID   int               `json:"pid"`
			Drawn map[string]string `json:"drawn"`
		}
		if err := lines.Decode(&copied); err != nil || copied.PID != 1 {
			t.Fatalf("copy %d: %+v, %v in %s", i, copied, err, out)
		}
		got[i] = copied.Drawn
	}
	return got
}

func TestSiblingsDrawDifferentKeysAndNumbers(t *testing.T) {
	python := wheelsPython(t)
	// Check that the copies draw the same numbers without reseeding. If they differed anyway, the
	// comparison below would prove nothing.
	same := siblings(t, python, "keep")
	for _, kind := range []string{"random", "ssl", "sqlite", "tempfile", "numpy", "ec key", "rsa key",
		"bundled libcrypto"} {
		if v := same[0][kind]; v == "" || v != same[1][kind] {
			t.Errorf("copies that keep their state draw %q and %q as %s", v, same[1][kind], kind)
		}
	}
	got := siblings(t, python, "reseed")
	for kind, v := range got[0] {
		if v == got[1][kind] {
			t.Errorf("both copies draw %s as %s", v, kind)
		}
		if v == same[0][kind] {
			t.Errorf("a process of its own draws the same %s", kind)
		}
	}
	if len(got[0]) != len(same[0]) {
		t.Errorf("drawn: %v", got[0])
	}
}

func TestForkFailsWhereAGeneratorIsOutOfReach(t *testing.T) {
	for name, c := range map[string]struct{ code, want string }{
		"cryptography without RAND_add": {
			`import sys, types
sys.modules["cryptography"] = types.SimpleNamespace(__version__="99.0")
sys.modules["cryptography.hazmat.bindings._rust"] = types.SimpleNamespace()`,
			"cannot reseed the generator of module cryptography.hazmat.bindings._rust",
		},
		"libcrypto without RAND_add": {
			`import ctypes, shutil, tempfile
import math
libm = next(l.split()[-1] for l in open("/proc/self/maps") if "/libm.so" in l)
dir = tempfile.mkdtemp()
shutil.copy(libm, dir + "/libcrypto-0a1b.so.3")
lib = ctypes.CDLL(dir + "/libcrypto-0a1b.so.3")
shutil.rmtree(dir)`,
			"libcrypto-0a1b.so.3: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, h := newServer(t)
			if got := run(t, h, code(c.code)); field(got, "error", "name") != "" {
				t.Fatal(got)
			}
			if err := s.Forked(nil); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the fork's error is %v, want %q", err, c.want)
			}
		})
	}
}

// A package manager can replace a library that a running process still uses. The library in that
// process must still be reseeded.
func TestALibraryWhoseFileIsGoneIsReseeded(t *testing.T) {
	s, h := newServer(t)
	got := run(t, h, code(`import ctypes, shutil, tempfile, _hashlib
path = next(l.split()[-1] for l in open("/proc/self/maps") if "/libcrypto.so" in l)
dir = tempfile.mkdtemp()
shutil.copy(path, dir + "/libcrypto.so.3")
lib = ctypes.CDLL(dir + "/libcrypto.so.3")
shutil.rmtree(dir)`))
	if name := field(got, "error", "name"); name == "StopIteration" {
		t.Skip("this python3 has OpenSSL linked into it")
	} else if name != "" {
		t.Fatal(got)
	}
	if err := s.Forked(nil); err != nil {
		t.Error(err)
	}
}

// The global generator of torch is reseeded through the call that torch documents for this purpose.
// A small module stands in for torch in this test, because the wheel of torch is too large.
func TestTorchIsReseeded(t *testing.T) {
	s, h := newServer(t)
	got := run(t, h, code(`import sys, types
seeded = []
torch = types.ModuleType("torch")
torch.seed = lambda: seeded.append("seed") or 1
sys.modules["torch"] = torch`))
	if name := field(got, "error", "name"); name != "" {
		t.Fatal(got)
	}
	if err := s.Forked(nil); err != nil {
		t.Fatal(err)
	}
	if got := run(t, h, code("' '.join(seeded)")); field(got, "result", "text") != "'seed'" {
		t.Errorf("after a fork: %v", got)
	}
}
