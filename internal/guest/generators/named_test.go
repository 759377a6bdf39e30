package generators

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
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

// A Rust program with the crate rand cannot be built here without the crate, so the test imitates
// its mark.
func TestARustProgramIsKnownByThePathsOfItsCrates(t *testing.T) {
	text := append(make([]byte, chunkSize-20),
		"/root/.cargo/registry/src/index.crates.io-6f17d22bba15001f/rand-0.8.5/src/rngs/thread.rs"...)
	file := filepath.Join(t.TempDir(), "program")
	for want, content := range map[bool][]byte{true: text, false: []byte("/rand/src /randall-0.8.5/src/ rand-0.8.5/src")} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		p := &process{search: &search{}}
		if got := p.hasRustCrate(f); got != want {
			t.Errorf("%.200q: %v", content, got)
		}
		f.Close()
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
	write("42/exe", "") // a thread of this process
	write(own+"/task/42/comm", "")
	write("43/exe", "") // a process
	for _, step := range []struct {
		last string
		want int // walks
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
	regions, err := parseMaps([]byte("7f0-8f0 rw-p 00000000 00:00 0 \n" +
		"1000-2000 r-xp 00000000 fe:00 12 /lib/a b.so (deleted)\n3000-4000 rw-p 00000000 00:00 0 [heap]\n" +
		"5000-6000 rw-p 00000000 00:00 0 [stack]\n7000-8000 rw-s 00000000 00:01 9 /dev/zero\n"))
	if err != nil || len(regions) != 5 {
		t.Fatalf("%+v, %v", regions, err)
	}
	for i, want := range []region{
		{0x7f0, 0x8f0, false, true, ""}, {0x1000, 0x2000, true, false, "/lib/a b.so"},
		{0x3000, 0x4000, false, true, "[heap]"},
		{0x5000, 0x6000, false, false, "[stack]"}, {0x7000, 0x8000, false, false, "/dev/zero"},
	} {
		if regions[i] != want {
			t.Errorf("line %d: %+v, want %+v", i, regions[i], want)
		}
	}
	for _, bad := range []string{"x", "1-2 rw-p", "2000-1000 rw-p 0 0 0", "1-z rw-p 0 0 0", "1-2 r 0 0 0"} {
		if _, err := parseMaps([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
