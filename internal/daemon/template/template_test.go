package template

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/loglimit"
)

// A guest with endless or binary output fills neither the log nor the memory.
func TestLogIsBounded(t *testing.T) {
	var l Log
	for _, text := range []string{"one", "  two", "bad \xff"} {
		l.add(levelInfo, "1", text)
	}
	want := []string{"one", "  two", "bad ?"}
	for n, e := range l.From(0, 100) {
		if n >= len(want) || e.Message != want[n] || e.Step != "1" || e.Level != levelInfo {
			t.Errorf("entry %d: %+v", n, e)
		}
	}
	l.add(levelInfo, "1", strings.Repeat("x", 3*maxLine))
	if got := l.From(3, 1)[0].Message; len(got) > maxLine+len(" …") {
		t.Errorf("a line has %d bytes", len(got))
	}
	for range maxEntries + 10 {
		l.add(levelInfo, "1", "y")
	}
	l.add(levelError, "1", "failed")
	all := l.From(0, 1<<30)
	last := all[len(all)-2:]
	if len(all) > maxEntries+2 || last[0].Level != levelWarn || last[1].Message != "failed" {
		t.Errorf("%d entries, the last are %+v", len(all), last)
	}
	if got := l.From(len(all), 100); len(got) != 0 {
		t.Errorf("beyond the end: %+v", got)
	}
}

// An ended build and its log are forgotten, so that the logs of all clients do not stay in memory.
func TestEndedBuildsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := New(Config{Dir: filepath.Join(t.TempDir(), "x"), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		bd, err := b.Request("token:a", Ask{Template: "x"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(maxWait + keepEnded - time.Second)
		if found, err := b.Find("token:a", "x", bd.ID); err != nil || found.ended.IsZero() {
			t.Errorf("a build that has just ended: %+v, %v", found, err)
		}
		time.Sleep(2 * time.Second)
		if _, err := b.Find("token:a", "x", bd.ID); !errors.Is(err, ErrUnknown) || len(b.builds) != 0 {
			t.Errorf("a build that ended long ago: %v, %d are remembered", err, len(b.builds))
		}
	})
}

// If a client ends more builds than are remembered, later requests and the daemon's shutdown still
// work. Builds that never ran do not fill the daemon's log.
func TestManyEndedBuilds(t *testing.T) {
	var log bytes.Buffer
	b, err := New(Config{Dir: filepath.Join(t.TempDir(), "x"), Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	request := func(name string) {
		t.Helper()
		if _, err := b.Request("token:a", Ask{Template: name}); err != nil {
			t.Fatal(err)
		}
	}
	for range maxEnded + 1 { // each build cancels the previous one
		request("first")
	}
	for _, name := range []string{"second", "third", "first", "second"} {
		request(name)
	}
	b.Close()
	for _, bd := range b.builds {
		if bd.ended.IsZero() {
			t.Errorf("the build of %s has not ended", bd.Template)
		}
	}
	if log.Len() != 0 {
		t.Errorf("the daemon's log has %s", log.String())
	}
}

func TestUploadsAreBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	if err := os.MkdirAll(filepath.Join(dir, "old"), 0o700); err != nil {
		t.Fatal(err)
	}
	u, err := newUploads(dir)
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("of an earlier daemon: %v", left)
	}
	b, c := &Build{ID: "b", Who: "x"}, &Build{ID: "c", Who: "x"}
	var wrong *invalid.Error
	for _, size := range []int64{-1, maxArchive + 1} {
		if err := u.put(b, "h", size, strings.NewReader("")); !errors.As(err, &wrong) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if err := u.put(b, "h", 5, strings.NewReader("four")); !errors.Is(err, io.EOF) || u.has("b", "h") || u.bytes != 0 {
		t.Errorf("an archive that is cut off: %v; %d bytes", err, u.bytes)
	}
	for _, text := range []string{"first", "2nd"} {
		if err := u.put(b, "h", int64(len(text)), strings.NewReader(text+"more")); err != nil {
			t.Fatal(err)
		}
		if p, err := os.ReadFile(u.path("b", "h")); err != nil || string(p) != text || u.bytes != int64(len(text)) {
			t.Errorf("%q, %v; %d bytes", p, err, u.bytes)
		}
	}
	u.bytes = maxArchives
	if err := u.put(b, "i", 1, strings.NewReader("1")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("more than all may have: %v", err)
	}
	u.bytes = 0
	u.by["x"] = maxOfClient
	if err := u.put(b, "i", 1, strings.NewReader("1")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("more than a client may have: %v", err)
	}
	if err := u.put(&Build{ID: "d", Who: "y"}, "i", 0, strings.NewReader("")); err != nil {
		t.Errorf("another client: %v", err)
	}
	u.drop(&Build{ID: "d", Who: "y"})
	u.by["x"] = 3
	u.coming = 1 << 60
	if err := u.put(b, "i", 1, strings.NewReader("1")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("more than there is room for when all have come: %v", err)
	}
	u.coming = 0
	for n := range maxFiles + 1 {
		if err := u.put(c, fmt.Sprint(n), 0, strings.NewReader("")); (n >= maxFiles) != errors.As(err, &wrong) {
			t.Fatalf("archive %d of one build: %v", n, err)
		}
	}
	u.drop(c)
	if u.coming != 0 {
		t.Errorf("%d bytes are still coming", u.coming)
	}
	u.bytes = 3
	u.drop(b)
	if left, _ := os.ReadDir(dir); len(left) != 0 || u.bytes != 0 || len(u.by) != 0 {
		t.Errorf("%v is left, %d bytes count, %v", left, u.bytes, u.by)
	}
}

// If a build ends while its archive is being uploaded, the archive's bytes are no longer counted
// after the build.
func TestUploadAtTheEndOfItsBuild(t *testing.T) {
	u, err := newUploads(filepath.Join(t.TempDir(), "x"))
	if err != nil {
		t.Fatal(err)
	}
	b := &Builder{cfg: Config{Log: slog.New(slog.DiscardHandler)}, lines: newLines(), uploads: u}
	bd := &Build{ID: "b", Who: "x", status: Building}
	if err := u.put(bd, "h", 1, strings.NewReader("1")); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock() // the build has removed its archives but has not ended
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.finish(bd, nil)
	}()
	for u.has("b", "h") {
		time.Sleep(time.Millisecond)
	}
	for { // an upload fails until the archives are removed
		if err := u.put(bd, "late", 3, strings.NewReader("333")); err == nil && u.has("b", "late") {
			break
		}
	}
	b.mu.Unlock()
	<-done
	if left, _ := os.ReadDir(u.dir); len(left) != 0 || u.bytes != 0 || len(u.by) != 0 || len(u.sizes) != 0 {
		t.Errorf("%v is left, %d bytes count, %v, %v", left, u.bytes, u.by, u.sizes)
	}
}

func TestSourceOf(t *testing.T) {
	for pattern, want := range map[string]string{"a/b.txt": "a/b.txt", "./a/": "a", ".": "", "*.txt": "", "a/**/b": "a",
		"a/b[1]":  "a",
		"../../a": "a", "a{b,c}/d": ""} {
		if got := sourceOf(pattern); got != want {
			t.Errorf("%q: %q, want %q", pattern, got, want)
		}
	}
}

// Secrets in a step are not in the log.
func TestTextOfSteps(t *testing.T) {
	for want, s := range map[string]Step{
		"ENV A B":  {Type: typeEnv, Args: []string{"A", "secret", "B", "secret"}},
		"COPY a b": {Type: typeCopy, Args: []string{"a", "b", "", ""}},
		"RUN id":   {Type: typeRun, Args: []string{"id", "root"}},
	} {
		if got := s.text(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if err := fmt.Sprint((&Step{Type: "env", Args: []string{"A"}}).check()); err == "" {
		t.Error("a variable without a value")
	}
}

// The number of builds of all clients together is limited.
func TestBuildsOfAllAreBounded(t *testing.T) {
	b := &Builder{cfg: Config{Log: slog.New(slog.DiscardHandler)}, lines: newLines(), uploads: &uploads{dir: t.TempDir(),
		by: map[string]int64{}}}
	defer b.Close()
	for n := range maxAll + 1 {
		_, err := b.Request(fmt.Sprint("client", n/(maxUnended-1)), Ask{Template: fmt.Sprint("t", n)})
		if (n >= maxAll) != errors.Is(err, ErrBusy) {
			t.Fatalf("build %d: %v", n, err)
		}
	}
	if _, err := b.Request("client0", Ask{Template: "t0"}); err != nil {
		t.Errorf("in place of one of its own: %v", err)
	}
}

// A client's command may contain a secret, so it is not in the daemon's log.
func TestStepsAreNotInTheDaemonsLog(t *testing.T) {
	var log bytes.Buffer
	b := &Builder{cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, lines: newLines()}
	bd := &Build{ID: "x", status: Building}
	b.endLocked(bd, &stepError{"1", &ownError{errors.New(`"curl -u me:secret": exit status 7`)}})
	if strings.Contains(log.String(), "secret") || !strings.Contains(bd.reason.Message, "secret") {
		t.Errorf("the client is told %q, the daemon's log has %s", bd.reason.Message, log.String())
	}
	log.Reset()
	bd.status = Building
	b.endLocked(bd, &stepError{"1", &ownError{fmt.Errorf("secret: %w", bake.ErrFull)}})
	if !strings.Contains(log.String(), syscall.ENOSPC.Error()) || strings.Contains(log.String(), "secret") {
		t.Errorf("the daemon's log does not say what the host is to blame for: %s", log.String())
	}
}

// If a build does not end when it is cancelled, its sandboxes are killed. Even if the build still
// does not end, the daemon can stop.
func TestCloseIsBounded(t *testing.T) {
	for _, ends := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b, err := New(Config{Dir: filepath.Join(t.TempDir(), "x"), Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			killed, over := make(chan struct{}), make(chan struct{})
			b.endAll = func() { close(killed) }
			b.running.Go(func() {
				<-killed
				if !ends {
					<-over
				}
			})
			start := time.Now()
			b.Close()
			want := closeWait
			if !ends {
				want = 2 * closeWait
			}
			if took := time.Since(start); took != want {
				t.Errorf("a build that ends with its sandbox: %v: it took %v, want %v", ends, took, want)
			}
			close(over)
		})
	}
}

// A panic in a build ends the build, not the daemon.
func TestPanicOfABuild(t *testing.T) {
	var log bytes.Buffer
	b, err := New(Config{Dir: filepath.Join(t.TempDir(), "x"), Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	bd, err := b.Request("alice", Ask{Template: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(t.Context(), bd, Plan{FromTemplate: "base"}); err != nil { // no Config.Builds: the build panics
		t.Fatal(err)
	}
	b.running.Wait()
	status, why := b.State(bd)
	if status != Failed || why.Message != errPanic.Error() {
		t.Errorf("%s: %+v", status, why)
	}
	if !strings.Contains(log.String(), "panic in a build of a template") ||
		!strings.Contains(log.String(), "Builder).run") {
		t.Errorf("the log lacks the panic: %s", &log)
	}
}

// If a client starts builds that fail at once, it cannot fill the daemon's log.
func TestLinesAboutFailedBuilds(t *testing.T) {
	var log strings.Builder
	b := &Builder{cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, lines: loglimit.New(0, 3)}
	for range 10 {
		b.endLocked(&Build{Who: "token:a", status: Building}, errors.New("exit status 7"))
	}
	if n := strings.Count(log.String(), "\n"); n != 3 {
		t.Errorf("%d lines, want 3", n)
	}
}
