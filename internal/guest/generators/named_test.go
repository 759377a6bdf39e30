package generators

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestWhatCannotBeReseededIsNamed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, as the agent has it")
	}
	library := func(name, draw string) func(t *testing.T) *server {
		return func(t *testing.T) *server {
			if out, _ := exec.Command("ldconfig", "-p").Output(); !strings.Contains(string(out), name) {
				t.Skipf("%s is not installed", name)
			}
			return serve(t, "", "python3",
				onEachLine("import ctypes; lib = ctypes.CDLL('"+name+"'); buf = ctypes.create_string_buffer(8)", draw)...)
		}
	}
	for name, c := range map[string]struct {
		start func(t *testing.T) *server
		want  string
	}{
		"go": {func(t *testing.T) *server { return serve(t, "FORKD_DRAW=1", os.Args[0]) }, "go: math/rand"},
		"java": {func(t *testing.T) *server {
			file := filepath.Join(t.TempDir(), "Draw.java")
			if err := os.WriteFile(file, []byte(drawJava), 0o600); err != nil {
				t.Fatal(err)
			}
			return serve(t, "", "java", file)
		}, "java: Random"},
		"perl": {func(t *testing.T) *server {
			return serve(t, "", "perl", "-e", `$|=1; while(<STDIN>) {print rand(),"\n"}`)
		}, "perl: rand"},
		"ruby": {func(t *testing.T) *server {
			return serve(t, "", "ruby", "-e", `$stdout.sync=true; STDIN.each_line {puts rand}`)
		}, "ruby: Random"},
		"sqlite": {func(t *testing.T) *server { return serve(t, "", "python3", onEachLine("import sqlite3", "1")...) },
			"libsqlite3"},
		"gnutls":    {library("libgnutls.so.30", "lib.gnutls_rnd(0, buf, 8)"), "libgnutls"},
		"libgcrypt": {library("libgcrypt.so.20", "lib.gcry_create_nonce(buf, 8)"), "libgcrypt"},
		"nss":       {library("libfreebl3.so", "1"), "nss"},
	} {
		t.Run(name, func(t *testing.T) {
			if report := renew(t, c.start(t).pid); !has(report.Repeats, c.want) {
				t.Errorf("the report is %+v, want %q among those that repeat", report, c.want)
			}
		})
	}
	t.Run("a shell", func(t *testing.T) {
		s := serve(t, "", "sh", "-c", "while read line; do echo $$; done")
		if report := renew(t, s.pid); len(report.Repeats)+len(report.Reseeded) > 0 {
			t.Errorf("the report is %+v, want nothing", report)
		}
	})
}

// A Rust program with the crate rand, a Go program, and a library with OpenSSL cannot all be built
// here. So the test writes files that have the marks of such files. Each mark lies across the
// boundary of two reads.
func TestMarksOfFiles(t *testing.T) {
	elf := func(at int, mark string) string {
		return "\x7fELF" + strings.Repeat("\x00", at) + mark + strings.Repeat("\x00", 3*chunkSize)
	}
	rust := "/root/.cargo/registry/src/index.crates.io-6f17d22bba15001f/rand-0.8.5/src/rngs/thread.rs"
	for name, c := range map[string]struct {
		content string
		want    marks
	}{
		"rust":                      {elf(chunkSize-20, rust), marks{rust: true}},
		"no crate":                  {elf(9, "/rand/src /randall-0.8.5/src/ rand-0.8.5/src"), marks{}},
		"openssl in the first read": {elf(99, string(openSSL)), marks{openssl: true}},
		"openssl in two reads":      {elf(2*chunkSize-20, string(openSSL)), marks{openssl: true}},
		"openssl at the end":        {"\x7fELF" + strings.Repeat("-", chunkSize-9) + string(openSSL), marks{openssl: true}},
		"go":                        {elf(4000, string(goNote)), marks{golang: true}},
		"rodata":                    {segments(rust), marks{rust: true}},
		"code":                      {segments("") + rust, marks{}},
		"a note further on":         {elf(maxHead, string(goNote)), marks{}},
		"a text":                    {string(openSSL), marks{}},
		"empty":                     {"", marks{}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "program")
			if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := searchOf(t, New(noneManaged)).readMarks(file)
			if err != nil || got != c.want {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

// segments returns an ELF file. The file has code at 0x1000, constants at 0x2000, and data after
// them. The constants begin with the given text.
func segments(text string) string {
	file := append([]byte("\x7fELF\x02"), make([]byte, 0x3000-5)...)
	binary.LittleEndian.PutUint64(file[32:], 64) // e_phoff
	binary.LittleEndian.PutUint16(file[54:], 56) // e_phentsize
	binary.LittleEndian.PutUint16(file[56:], 4)  // e_phnum
	for i, s := range []struct{ flags, from, length int }{
		{4, 0, 0x200}, {5, 0x1000, 0x800}, {4, 0x2000, 0x800}, {6, 0x3000, 0x800},
	} {
		entry := file[64+56*i:]
		binary.LittleEndian.PutUint32(entry, 1) // PT_LOAD
		binary.LittleEndian.PutUint32(entry[4:], uint32(s.flags))
		binary.LittleEndian.PutUint64(entry[8:], uint64(s.from))
		binary.LittleEndian.PutUint64(entry[32:], uint64(s.length))
	}
	copy(file[0x2000:], text)
	return string(file)
}

// If a program ran before the snapshot and has not changed since, a forked sandbox does not read it
// again.
func TestProgramsAreReadOnceBeforeTheSnapshot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, as the agent has it")
	}
	program := filepath.Join(t.TempDir(), "sleeper")
	text, err := os.ReadFile("/bin/sleep")
	if err == nil {
		err = os.WriteFile(program, text, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(serveSleep(t, program))
	// A procfs in which only this process appears.
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "loadavg"), []byte("0 0 0 1/1 1\n"), 0o600),
		os.Symlink("/proc/"+pid, filepath.Join(dir, pid))); err != nil {
		t.Fatal(err)
	}
	f := in(dir, noneManaged)
	if err := f.Rehearse(); err != nil || len(f.files) < 2 {
		t.Fatalf("%d files are known, want the program and its libraries; %v", len(f.files), err)
	}
	known := maps.Clone(f.files)
	before := len(known)
	for id := range f.files {
		f.files[id] = marks{rust: true} // a second reading of the file would replace this
	}
	report, err := f.Renew()
	if err != nil || !has(report.Repeats, "rust: crate rand") {
		t.Errorf("the program was read again: %+v, %v", report, err)
	}
	f.files = known
	if err := os.Chtimes(program, time.Unix(1, 0), time.Unix(1, 0)); err != nil { // changes ctime
		t.Fatal(err)
	}
	if _, err := f.Renew(); err != nil || len(f.files) != before+1 {
		t.Errorf("%d files are known after a change of the program, want one more than %d; %v",
			len(f.files), before, err)
	}
}

func serveSleep(t *testing.T, program string) (pid int) {
	t.Helper()
	cmd := exec.Command(program, "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	time.Sleep(200 * time.Millisecond) // time for the program to map its libraries
	return cmd.Process.Pid
}

// A process is searched only if one of its files contains OpenSSL, or if it has loaded code into
// memory without a file.
func TestOnlyProcessesWithOpenSSLAreSearched(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, as the agent has it")
	}
	packed := "import mmap; m = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS, prot=%s)\n" +
		"import ctypes; at = ctypes.addressof(ctypes.c_char.from_buffer(m))\n" +
		"m[9:37] = bytes(b ^ 1 for b in b%q); ctypes.CDLL(None).mprotect(ctypes.c_void_p(at), 1 << 20, %s)"
	hidden := make([]byte, len(openSSL))
	for i, b := range openSSL {
		hidden[i] = b ^ 1
	}
	for name, c := range map[string]struct {
		program []string
		want    bool
	}{
		"a shell":            {[]string{"sh", "-c", "while read line; do echo $$; done"}, false},
		"python":             {append([]string{"python3"}, onEachLine("", "1")...), false},
		"python with ssl":    {append([]string{"python3"}, onEachLine("import ssl", "1")...), true},
		"unpacked, read":     {append([]string{"python3"}, onEachLine(fmt.Sprintf(packed, "3", hidden, "1"), "1")...), true},
		"unpacked, executed": {append([]string{"python3"}, onEachLine(fmt.Sprintf(packed, "7", hidden, "7"), "1")...), true},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, "", c.program[0], c.program[1:]...)
			p := &process{search: searchOf(t, New(noneManaged)), pid: s.pid}
			if err := p.open(); err != nil {
				t.Fatal(err)
			}
			defer p.mem.Close()
			if _, openssl, err := p.classify(); err != nil || openssl != c.want {
				t.Errorf("OpenSSL found: %v, %v; want %v", openssl, err, c.want)
			}
		})
	}
}

// A system without user processes is searched only once.
func TestNothingIsLookedForTwice(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	last := func(pid string) { write("loadavg", "0.00 0.01 0.05 1/92 "+pid+"\n") }
	last("40")
	walks := 0
	f := in(dir, func() (renewed, partly []int) { walks++; return nil, nil })
	if err := f.Rehearse(); err != nil || walks != 1 {
		t.Fatalf("%d walks, %v", walks, err)
	}
	own := strconv.Itoa(os.Getpid())
	write("42/exe", "") // has no exe, but is a thread of this process
	write(own+"/task/42/comm", "")
	write("43/exe", "") // has no exe, and is a process
	for _, step := range []struct {
		last string
		want int // number of walks through /proc
	}{{"40", 0}, {"41", 0}, {"42", 0}, {"43", 1}, {"39", 1}, {"200", 1}, {"", 1}, {"x", 1}} {
		last(step.last)
		walks = 0
		if _, err := f.Renew(); err != nil || walks != step.want {
			t.Errorf("after process %q: %d walks, want %d; %v", step.last, walks, step.want, err)
		}
	}
	last("42")
	if n := testing.AllocsPerRun(100, func() { _, _ = f.Renew() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMapsOfAllKinds(t *testing.T) {
	regions, err := parseMaps([]byte("7f0-8f0 rw-p 00000000 00:00 0 \n"+
		"1000-2000 r-xp 00000000 fe:00 12 /lib/a b.so (deleted)\n3000-4000 rw-p 00000000 00:00 0 [heap]\n"+
		"5000-6000 rw-p 00000000 00:00 0 [stack]\n7000-8000 rw-s 00000000 00:01 9 /dev/zero\n"+
		"9000-a000 r-xp 00000000 00:00 0 \n"), nil)
	if err != nil || len(regions) != 6 {
		t.Fatalf("%+v, %v", regions, err)
	}
	for i, want := range []region{
		{0x7f0, 0x8f0, false, true, false, nil, nil},
		{0x1000, 0x2000, true, false, false, []byte("fe:00 12"), []byte("/lib/a b.so")},
		{0x3000, 0x4000, false, true, false, nil, []byte("[heap]")},
		{0x5000, 0x6000, false, false, false, nil, []byte("[stack]")},
		{0x7000, 0x8000, false, false, false, []byte("00:01 9"), []byte("/dev/zero")},
		{0x9000, 0xa000, true, false, true, nil, nil},
	} {
		if got := fmt.Sprint(regions[i]); got != fmt.Sprint(want) {
			t.Errorf("line %d: %s, want %v", i, got, want)
		}
	}
	for _, bad := range []string{"x", "1-2 rw-p", "2000-1000 rw-p 0 0 0", "1-z rw-p 0 0 0", "1-2 r 0 0 0"} {
		if _, err := parseMaps([]byte(bad), nil); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// Parsing must allocate nothing: forked sandboxes copy each page that the agent writes, and a
// browser has thousands of mappings.
func TestMapsAreParsedWithoutGarbage(t *testing.T) {
	text := bytes.Repeat([]byte("7f0000000000-7f0000001000 r-xp 00001000 fe:00 1234    /usr/lib/libc.so.6\n"), 1000)
	regions, err := parseMaps(text, nil)
	if err != nil || len(regions) != 1000 {
		t.Fatalf("%d regions, %v", len(regions), err)
	}
	if n := testing.AllocsPerRun(10, func() { regions, _ = parseMaps(text, regions[:0]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
