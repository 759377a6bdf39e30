package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// If the environment variable roleVariable is set, the test binary runs one of the processes in
// TestMain instead of the tests. The process writes to the path in pathVariable.
const (
	roleVariable = "ATOMICFILE_TEST_ROLE"
	pathVariable = "ATOMICFILE_TEST_PATH"
)

func TestMain(m *testing.M) {
	path := os.Getenv(pathVariable)
	switch os.Getenv(roleVariable) {
	case "":
		os.Exit(m.Run())
	case "writer":
		for i := byte(0); ; i++ {
			if err := Write(path, content(i), 0o600); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			if i == 0 {
				fmt.Println("writing")
			}
		}
	case "without-room":
		signal.Ignore(unix.SIGXFSZ)
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4096, Max: 4096}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		err := Write(path, content('n'), 0o600)
		if !errors.Is(err, unix.EFBIG) {
			fmt.Printf("Write past the limit: %v, want EFBIG\n", err)
			os.Exit(1)
		}
	}
}

// content returns the content for one write. All bytes are equal, and the content is too long for
// the kernel to write in one step.
func content(b byte) []byte { return bytes.Repeat([]byte{b}, 3<<20) }

func role(name, path string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+name, pathVariable+"="+path)
	return cmd
}

// checkWhole fails the test if p is not the content of exactly one write.
func checkWhole(t *testing.T, p []byte) {
	t.Helper()
	if len(p) == 0 || !bytes.Equal(p, content(p[0])) {
		t.Fatalf("found a part of a write: %d bytes", len(p))
	}
}

func TestReadersAndCrashesFindWholeContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for range 10 {
		cmd := role("writer", path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if n, err := out.Read(make([]byte, 64)); err != nil || n == 0 {
			t.Fatalf("the writer says nothing: %v", err)
		}
		for range 10 {
			p, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			checkWhole(t, p)
			time.Sleep(time.Millisecond / 2)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait() // the error says that the process was killed
		p, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		checkWhole(t, p)
	}
}

func TestFailedWriteKeepsTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := Write(path, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	if out, err := role("without-room", path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	checkOnly(t, dir, "file", "old", 0o640)
}

func TestWrite(t *testing.T) {
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{"Write": Write,
		"WriteDurable": WriteDurable} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			for _, c := range []struct {
				content string
				mode    fs.FileMode
			}{{"first", 0o500}, {"second", 0o666}, {"", 0o600}} {
				if err := write(path, []byte(c.content), c.mode); err != nil {
					t.Fatal(err)
				}
				checkOnly(t, dir, "file", c.content, c.mode)
			}
			if err := write(filepath.Join(dir, "no", "file"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("write into a directory that does not exist: %v", err)
			}
		})
	}
}

func TestWriteIntoTheWorkingDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := WriteDurable("file", []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	checkOnly(t, ".", "file", "new", 0o600)
}

func TestFill(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path+".new", []byte("of a fill that was killed"), 0o600); err != nil {
		t.Fatal(err)
	}
	fill := func(tmp string) error {
		if _, err := os.Stat(tmp); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the temporary file is there before it is filled: %v", err)
		}
		return os.WriteFile(tmp, []byte("new"), 0o600)
	}
	if err := Fill(path, fill); err != nil {
		t.Fatal(err)
	}
	checkOnly(t, dir, "file", "new", 0o600)

	broken := errors.New("broken")
	err := Fill(path, func(tmp string) error {
		return errors.Join(os.WriteFile(tmp, []byte("half"), 0o600), broken)
	})
	if !errors.Is(err, broken) {
		t.Errorf("Fill with a broken fill: %v", err)
	}
	checkOnly(t, dir, "file", "new", 0o600)
}

// checkOnly fails the test unless dir holds one file, with this content and mode.
func checkOnly(t *testing.T, dir, name, content string, mode fs.FileMode) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Name() != name {
		t.Fatalf("%s holds %v, want only %s", dir, entries, name)
	}
	p, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if string(p) != content || info.Mode() != mode {
		t.Errorf("%s holds %.20q with mode %v, want %q with %v", name, p, info.Mode(), content, mode)
	}
}

// Clean removes the files that killed writers have left, and nothing else.
func TestClean(t *testing.T) {
	dir := t.TempDir()
	kept := []string{"a", "a.new-1", ".a", ".a.new-", ".a.new-1.json", ".new-1", ".a.new-x", "b.new"}
	for _, name := range append([]string{".a.new-123", ".a.json.new-ABC7"}, kept...) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Clean(dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != len(kept) {
		t.Errorf("%v, %v; want %v", entries, err, kept)
	}
	for _, name := range kept {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if err := Clean(filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
}
