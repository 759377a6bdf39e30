package generators

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

func noneManaged() (renewed, partly []int) { return nil, nil }

// renew searches one process of this host.
func renew(t *testing.T, pid int) agentproto.Unique {
	t.Helper()
	f := New(noneManaged)
	s := searchOf(t, f)
	s.process(pid)
	return s.report
}

func searchOf(t *testing.T, f *Finder) *search {
	t.Helper()
	s, err := f.search(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

func has(list []agentproto.Generator, library string) bool {
	return slices.ContainsFunc(list, func(g agentproto.Generator) bool { return strings.Contains(g.Library, library) })
}

// copies runs testdata/copies.py. The Python code in draw defines a function that is also named
// draw. The script clones its process twice, and each copy calls this function. The result has the
// return value of each copy. If between is not nil, it is called for each copy, with the copy's
// process id, before the copy calls draw.
func copies(t *testing.T, python []string, draw string, between func(pid int)) [2]map[string]string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "draw.py")
	if err := os.WriteFile(file, []byte(draw), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python[0], "testdata/copies.py", file)
	cmd.Env = append(os.Environ(), python[1:]...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("PID namespaces are not allowed here: %v", err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewReader(out)
	var got [2]map[string]string
	for i := range got {
		if line, err := lines.ReadString('\n'); line != "ready\n" {
			t.Fatalf("copy %d: %q, %v", i, line, err)
		}
		if between != nil {
			between(childOf(t, cmd.Process.Pid))
		}
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
		line, err := lines.ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &got[i])
		}
		if err != nil {
			t.Fatalf("copy %d: %q, %v", i, line, err)
		}
	}
	return got
}

func childOf(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return child
}

// packages returns the directory of a package in the version that scripts/test-wheels has
// installed.
func packages(t *testing.T, name string) string {
	t.Helper()
	dir, err := cachedir.Dir()
	if err != nil {
		t.Skip(err)
	}
	dir = filepath.Join(dir, name)
	if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
		t.Skipf("%s is missing; run scripts/test-wheels, which needs a package index", dir)
	}
	return dir
}

const drawSSL = `
import ssl
def draw(): return {"ssl": ssl.RAND_bytes(8).hex()}
`

const drawWheel = `
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.backends import default_backend
def draw(): return {"key": str(ec.generate_private_key(ec.SECP256R1(), default_backend()).private_numbers().private_value)}
`

const drawBundled = `
import ctypes, psycopg2
def draw():
    path = next(l.split()[-1] for l in open("/proc/self/maps") if "psycopg2_binary.libs/libcrypto-" in l)
    buf = ctypes.create_string_buffer(8)
    assert ctypes.CDLL(path).RAND_bytes(buf, 8) == 1
    return {"bundled": buf.raw.hex()}
`

const drawThreads = `
import ssl, threading
# Generators of other threads hang on the same parent, which has reseeded meanwhile.
def work():
    for _ in range(1000): ssl.RAND_bytes(8)
thread = threading.Thread(target=work)
thread.start()
thread.join()
def draw(): return {"ssl": ssl.RAND_bytes(8).hex()}
`

func TestOpenSSLOfAnyProcessIsReseeded(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, as the agent has it")
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	wheel := func(version string) func(t *testing.T) []string {
		return func(t *testing.T) []string {
			return []string{python, "PYTHONPATH=" + packages(t, "test-openssl/"+version)}
		}
	}
	system := func(*testing.T) []string { return []string{python} }
	for name, c := range map[string]struct {
		python  func(t *testing.T) []string
		draw    string
		library string
	}{
		"system":            {system, drawSSL, "libcrypto.so"},
		"system, much used": {system, drawThreads, "libcrypto.so"},
		"3.0":               {wheel("38.0.4"), drawWheel, ".so"},
		"3.1":               {wheel("41.0.7"), drawWheel, ".so"},
		"3.2":               {wheel("42.0.8"), drawWheel, ".so"},
		"3.3":               {wheel("43.0.3"), drawWheel, ".so"},
		"3.4":               {wheel("44.0.3"), drawWheel, ".so"},
		"3.5":               {wheel("46.0.3"), drawWheel, ".so"},
		"psycopg2-binary": {func(t *testing.T) []string {
			return []string{filepath.Join(packages(t, "test-wheels"), "bin", "python3")}
		}, drawBundled, "libcrypto-"},
	} {
		t.Run(name, func(t *testing.T) {
			python := c.python(t)
			// Check that the copies draw the same numbers without reseeding. If they differed
			// anyway, the comparison below would prove nothing.
			same := copies(t, python, c.draw, nil)
			var report agentproto.Unique
			got := copies(t, python, c.draw, func(pid int) { report = renew(t, pid) })
			for kind, v := range same[0] {
				if v == "" || v != same[1][kind] {
					t.Errorf("copies that keep their state draw %q and %q as %s", v, same[1][kind], kind)
				}
				if got[0][kind] == got[1][kind] {
					t.Errorf("both copies draw %s as %s", got[0][kind], kind)
				}
			}
			if !has(report.Reseeded, c.library) {
				t.Errorf("the report is %+v, want %q as reseeded", report, c.library)
			}
			if !has(report.Repeats, "python: random") {
				t.Errorf("the report is %+v, want the generator of Python's own named", report)
			}
		})
	}
}

// server is a program that draws a random number for each line of its input.
type server struct {
	in  io.Writer
	out *bufio.Reader
	pid int
}

func (s *server) draw(t *testing.T) string {
	t.Helper()
	if _, err := io.WriteString(s.in, "\n"); err != nil {
		t.Fatal(err)
	}
	line, err := s.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func serve(t *testing.T, env string, program string, args ...string) *server {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), env), os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	s := &server{in, bufio.NewReader(out), cmd.Process.Pid}
	s.draw(t)
	return s
}

// onEachLine returns a Python program that evaluates the expression in draw for each line of its
// input and prints the result.
func onEachLine(imports, draw string) []string {
	return []string{"-c", "import sys\n" + imports + "\nfor _ in sys.stdin: print(" + draw + ", flush=True)"}
}

// due returns the number of OpenSSL generators in a process, and how many of them will reseed when
// they are next used.
func due(t *testing.T, pid int) (all, reseed int) {
	t.Helper()
	f := New(noneManaged)
	p := &process{search: searchOf(t, f), pid: pid}
	err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	defer p.mem.Close()
	err = p.searchMemory(needle, func(r *region) bool { return r.anonymous }, func(addr uint64) error {
		var text [drbgSize]byte
		if _, err := p.mem.ReadAt(text[:], int64(addr-drbgHead)); err != nil {
			return err
		}
		if _, ok := p.drbg(&text); ok && addr%8 == 0 {
			all++
			if binary.LittleEndian.Uint32(text[offGenerate:]) >= binary.LittleEndian.Uint32(text[offInterval:]) {
				reseed++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, reseed
}

// This test reads from the generators' memory whether they have reseeded. A comparison of copies
// would not work. OpenSSL 1.1.1 mixes the time into each draw, so copies always differ, and Node
// has threads, so clone(2) cannot copy it.
func TestGeneratorsOfServersReseedWithTheirNextUse(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, as the agent has it")
	}
	node := "process.stdin.on('data', () => console.log(crypto.randomBytes(8).toString('hex')))"
	for name, c := range map[string]struct {
		start            func(t *testing.T) *server
		library, repeats string
	}{
		"node": {func(t *testing.T) *server { return serve(t, "", "node", "-e", node) }, "node", "node: Math.random"},
		"openssl 1.1.1": {func(t *testing.T) *server {
			return serve(t, "PYTHONPATH="+packages(t, "test-openssl/3.4.8"), "python3", onEachLine(
				"from cryptography.hazmat.primitives.asymmetric import ec\n"+
					"from cryptography.hazmat.backends import default_backend",
				"ec.generate_private_key(ec.SECP256R1(), default_backend()).private_numbers().private_value")...)
		}, "OpenSSL 1.1.1", "python: random"},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.start(t)
			all, reseed := due(t, s.pid)
			if all < 2 || reseed != 0 {
				t.Fatalf("%d of %d generators are due before", reseed, all)
			}
			report := renew(t, s.pid)
			if !has(report.Reseeded, c.library) || !has(report.Repeats, c.repeats) {
				t.Errorf("report %+v", report)
			}
			if n, reseed := due(t, s.pid); reseed != n || n != all {
				t.Errorf("%d of %d generators are due, want %d", reseed, n, all)
			}
			s.draw(t)
			if _, reseed := due(t, s.pid); reseed > all-2 {
				t.Errorf("%d of %d generators are still due after a draw, want the used one and its parent reseeded", reseed, all)
			}
		})
	}
}

// After the page of BoringSSL was wiped, BoringSSL finds its flag cleared. It must then reseed and
// set the flag again.
func TestBoringSSLFindsItsPageWiped(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, as the agent has it")
	}
	s := serve(t, "PYTHONPATH="+packages(t, "test-openssl/boringssl"), "python3", onEachLine(`
import curl_cffi.requests, socket, threading
listener = socket.create_server(("127.0.0.1", 0))
def hello():
    got = []
    def accept():
        conn, _ = listener.accept()
        got.append(conn.recv(4096)[11:43].hex())
        conn.close()
    thread = threading.Thread(target=accept)
    thread.start()
    try: curl_cffi.requests.get("https://127.0.0.1:%d/" % listener.getsockname()[1])
    except Exception: pass
    thread.join()
    return got[0]`, "hello()")...)
	if n := flags(t, s.pid); n != 1 {
		t.Fatalf("%d flags are set before, want that of BoringSSL", n)
	}
	if report := renew(t, s.pid); !has(report.Reseeded, "BoringSSL") {
		t.Errorf("report %+v", report)
	}
	if n := flags(t, s.pid); n != 0 {
		t.Errorf("%d flags are set, want none", n)
	}
	s.draw(t)
	if n := flags(t, s.pid); n != 1 {
		t.Errorf("%d flags are set after a draw, want that of BoringSSL", n)
	}
}

// flags returns the number of pages in a process that contain a flag and are wiped on fork(2).
func flags(t *testing.T, pid int) int {
	t.Helper()
	f := New(noneManaged)
	p := &process{search: searchOf(t, f), pid: pid}
	smaps, err := os.ReadFile(p.path(pid, "smaps"))
	if err := errors.Join(err, p.open()); err != nil {
		t.Fatal(err)
	}
	defer p.mem.Close()
	n := 0
	for i := range p.regions {
		if r := &p.regions[i]; r.end-r.start == pageSize && hasFlag(smaps, r, "wf") && p.isFlag(r) {
			n++
		}
	}
	return n
}

const drawJava = `
import java.io.*;
public class Draw {
    public static void main(String[] args) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        while (in.readLine() != null) System.out.println(Math.random());
    }
}`

// If the program runs as a child process of a test, TestMain draws from Go's generator.
func TestMain(m *testing.M) {
	if os.Getenv("FORKD_DRAW") == "" {
		os.Exit(m.Run())
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(mathrand.Uint64())
	}
}
