package once

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/record"
)

func open(t *testing.T, dir string) *Book {
	t.Helper()
	b, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// free lets Do read a record of any size.
func free(int64) error { return nil }

// made(n) returns a request whose answer is n.
func made(n string) func() (Answer, error) {
	return func() (Answer, error) { return Answer{Status: 201, Body: json.RawMessage(n)}, nil }
}

func check(t *testing.T, b *Book, key Key, request Request, do func() (Answer, error), want string, wantAgain bool) {
	t.Helper()
	a, again, err := b.Do(t.Context(), key, request, free, do)
	if err != nil || string(a.Body) != want || a.Status != 201 || again != wantAgain {
		t.Errorf("%d %s, again %v, %v; want %s, %v", a.Status, a.Body, again, err, want, wantAgain)
	}
}

func TestOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "once")
	b := open(t, dir)
	check(t, b, Key{1}, Request{1}, made("1"), "1", false)
	check(t, b, Key{1}, Request{1}, made("2"), "1", true)
	check(t, b, Key{2}, Request{1}, made("3"), "3", false)
	if _, _, err := b.Do(t.Context(), Key{1}, Request{2}, free, made("4")); !errors.Is(err, ErrOther) {
		t.Errorf("another request: %v", err)
	}
	failed := errors.New("no")
	if _, _, err := b.Do(t.Context(), Key{3}, Request{1}, free, func() (Answer, error) {
		return Answer{}, failed
	}); !errors.Is(err, failed) {
		t.Errorf("a failure: %v", err)
	}
	check(t, b, Key{3}, Request{2}, made("5"), "5", false)
	b = open(t, dir) // a restarted daemon
	check(t, b, Key{1}, Request{1}, made("6"), "1", true)
	b.now = func() time.Time { return time.Now().Add(Keep) }
	check(t, b, Key{1}, Request{2}, made("7"), "7", false)
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("a day later: %v, %v", files, err)
	}
}

// A request that was running when the daemon died is not executed again, and its repetition gets an
// error.
func TestUnknownOutcome(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	if known, wait, err := b.begin(Key{1}, Request{1}, free); known != nil || wait != nil || err != nil {
		t.Fatal(known, wait, err)
	}
	for name, content := range map[string]string{"half": "", strings.Repeat("ab", 32) + ".json": "{"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b = open(t, dir)
	if _, _, err := b.Do(t.Context(), Key{1}, Request{1}, free, made("1")); !errors.Is(err, ErrUnknown) {
		t.Errorf("asked again: %v", err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("left: %v, %v", files, err)
	}
}

// A record that was written by another version of forkd is kept for as long as an answer is kept.
// In this time, its request is not executed again.
func TestRecordsOfOtherVersions(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	check(t, b, Key{1}, Request{1}, made("1"), "1", false)
	text, err := os.ReadFile(b.path(Key{1}))
	if err != nil {
		t.Fatal(err)
	}
	later := strings.Replace(string(text), `"version":1`, `"version":2`, 1)
	if err := os.WriteFile(b.path(Key{1}), []byte(later), 0o600); err != nil || later == string(text) {
		t.Fatal(err, later)
	}
	b = open(t, dir)
	var bad *record.Error
	if _, _, err := b.Do(t.Context(), Key{1}, Request{1}, free, made("2")); !errors.Is(err, ErrUnknown) ||
		!errors.As(err, &bad) ||
		bad.Path != b.path(Key{1}) || bad.Field != "version" {
		t.Errorf("a later version: %v", err)
	}
	if err := os.WriteFile(b.path(Key{1}), text, 0o600); err != nil { // now the record can be read again
		t.Fatal(err)
	}
	check(t, open(t, dir), Key{1}, Request{1}, made("3"), "1", true)
	if err := os.WriteFile(b.path(Key{1}), []byte(later), 0o600); err != nil {
		t.Fatal(err)
	}
	b = open(t, dir)
	b.now = func() time.Time { return time.Now().Add(Keep) }
	check(t, b, Key{1}, Request{1}, made("4"), "4", false)
}

// Records from before records had versions can still be read, and their answers are returned.
func TestRecordsOfVersion0(t *testing.T) {
	const golden = "../../format/record/testdata/once"
	b := open(t, t.TempDir())
	now, err := time.Parse(time.DateOnly, "2026-11-25")
	if err != nil {
		t.Fatal(err)
	}
	b.now = func() time.Time { return now }
	key := KeyOf("team-a", "create-1")
	for file, want := range map[string]error{".v0.json": nil, "-begun.v0.json": ErrUnknown} {
		text, err := os.ReadFile(golden + file)
		if err == nil {
			err = os.WriteFile(b.path(key), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		a, again, err := b.Do(t.Context(), key, Request{1, 2, 3}, free, made("1"))
		if !errors.Is(err, want) || err == nil && (!again || !strings.Contains(string(a.Body),
			"sb-mfrggzdfmztwq2lknnwg23tpob")) {
			t.Errorf("%s: %s, again %v, %v", file, a.Body, again, err)
		}
	}
}

// If a repetition arrives while the first request is running, the repetition waits for the first
// request's answer. If the first request fails, the repetition is executed.
func TestUnderWay(t *testing.T) {
	b := open(t, t.TempDir())
	for _, fails := range []bool{false, true} {
		key := Key{1}
		if fails {
			key = Key{2}
		}
		begun, finish := make(chan bool), make(chan bool)
		go func() {
			defer func() { recover() }() // the handler of an aborted connection panics
			b.Do(context.Background(), key, Request{1}, free, func() (Answer, error) {
				close(begun)
				if <-finish; fails {
					panic("gives up")
				}
				return made("1")()
			})
		}()
		<-begun
		if _, _, err := b.Do(t.Context(), key, Request{2}, free, made("2")); !errors.Is(err, ErrOther) {
			t.Errorf("another request meanwhile: %v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := b.Do(ended, key, Request{1}, free, made("2")); !errors.Is(err, context.Canceled) {
			t.Errorf("who does not wait: %v", err)
		}
		answered := make(chan Answer)
		go func() {
			a, _, _ := b.Do(context.Background(), key, Request{1}, free, made("3"))
			answered <- a
		}()
		close(finish)
		want := "1"
		if fails {
			want = "3"
		}
		if a := <-answered; string(a.Body) != want {
			t.Errorf("fails %v: the second got %s, want %s", fails, a.Body, want)
		}
	}
}

func TestOldestGoFirst(t *testing.T) {
	b := open(t, t.TempDir())
	big := `"` + strings.Repeat("x", maxBytes/4) + `"`
	for _, name := range []string{"1", "2", "3", "4", "5"} {
		check(t, b, KeyOf("one", name), Request{}, made(big), big, false)
	}
	check(t, b, KeyOf("one", "5"), Request{}, made("1"), big, true)
	check(t, b, KeyOf("one", "1"), Request{}, made("1"), "1", false)
}

// If the bounds are exceeded, the client with the most answers loses its oldest answers. Other
// clients lose no answers.
func TestClientsDoNotPushOneAnotherOut(t *testing.T) {
	b := open(t, t.TempDir())
	check(t, b, KeyOf("quiet", "1"), Request{}, made("1"), "1", false)
	big := `"` + strings.Repeat("x", maxBytes/4) + `"`
	for _, name := range []string{"1", "2", "3", "4", "5"} {
		check(t, b, KeyOf("loud", name), Request{}, made(big), big, false)
	}
	check(t, b, KeyOf("quiet", "1"), Request{}, made("2"), "1", true)
	check(t, b, KeyOf("loud", "1"), Request{}, made("1"), "1", false)
	check(t, b, KeyOf("loud", "5"), Request{}, made("1"), big, true)
}

// A single answer that exceeds the total bound does not displace other clients' answers.
func TestOneAnswerDoesNotPushOthersOut(t *testing.T) {
	b := open(t, t.TempDir())
	check(t, b, KeyOf("quiet", "1"), Request{}, made("1"), "1", false)
	huge := `"` + strings.Repeat("x", maxBytes+1) + `"`
	check(t, b, KeyOf("loud", "1"), Request{}, made(huge), huge, false)
	check(t, b, KeyOf("quiet", "1"), Request{}, made("2"), "1", true)
}

// A slow disk delays only the request whose record is being written.
func TestASlowRecordStopsItsRequestOnly(t *testing.T) {
	b := open(t, filepath.Join(t.TempDir(), "once"))
	slow, _, err := b.take(Key{1}, Request{1}) // as if a write did not return
	if slow == nil || err != nil {
		t.Fatal(err)
	}
	check(t, b, Key{2}, Request{1}, made("2"), "2", false)
	check(t, b, Key{2}, Request{1}, made("3"), "2", true)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := b.Do(ctx, Key{1}, Request{1}, free, made("1")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it did not wait for its record: %v", err)
	}
	b.leave(Key{1})
	check(t, b, Key{1}, Request{1}, made("1"), "1", false)
}

// Find returns the answer to an earlier request, and neither executes nor records anything.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	if a, err := b.Find(t.Context(), Key{1}, Request{1}, free); a != nil || err != nil {
		t.Fatalf("before the first request: %v, %v", a, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("after Find: %v, %v", files, err)
	}
	running, end := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, _, err := b.Do(t.Context(), Key{1}, Request{1}, free, func() (Answer, error) {
			close(running)
			<-end
			return made("1")()
		})
		done <- err
	}()
	<-running
	hasty, cancel := context.WithCancel(t.Context())
	cancel()
	if a, err := b.Find(hasty, Key{1}, Request{1}, free); !errors.Is(err, context.Canceled) {
		t.Errorf("while the request runs: %v, %v", a, err)
	}
	close(end)
	if a, err := b.Find(t.Context(), Key{1}, Request{1}, free); err != nil || a == nil || string(a.Body) != "1" {
		t.Errorf("after the request: %v, %v", a, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := b.Find(t.Context(), Key{1}, Request{2}, free); !errors.Is(err, ErrOther) {
		t.Errorf("another request with the key: %v", err)
	}
}
