package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestEveryEntryIsOneLineWhateverTheClientSends(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	nasty := "a\nb\x00\xff" + strings.Repeat("x", 5000)
	if err := l.Write(Entry{Time: time.Unix(1, 0), Method: "GET", Path: nasty, UserAgent: nasty,
		Status: 401}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	if err := l.Write(Entry{Method: "DELETE"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for name, method := range map[string]string{path + ".1": "GET", path: "DELETE"} {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		n := 0
		for lines := bufio.NewScanner(f); lines.Scan(); n++ {
			var e Entry
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Method != method {
				t.Errorf("%s: %q: %v", name, lines.Text(), err)
			}
		}
		if n != 1 {
			t.Errorf("%s has %d lines, want 1", name, n)
		}
	}
}

// A client cannot write long lines, whichever field contains its text.
func TestLinesAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("<", 60<<10)
	if err := l.Write(Entry{Method: long, Path: long, UserAgent: long, Sandbox: long, Host: long, Who: long}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if f, err := os.Stat(path); err != nil || f.Size() > 7*maxField {
		t.Errorf("a line of %d bytes: %v", f.Size(), err)
	}
}

func TestNilLogDropsEntries(t *testing.T) {
	var l *Log
	if err := l.Write(Entry{}); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// Strangers cannot fill the log, whether or not they are refused, and their omitted lines are
// counted. Lines about refused strangers do not displace lines about served strangers. Lines about
// other clients are never omitted.
func TestStrangersAreLimited(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	const n = 5000
	for i := range n {
		e := Entry{Status: 401}
		switch i % 5 {
		case 1:
			e = Entry{Status: 429, Who: SignedURL}
		case 2:
			e = Entry{Status: 403, Who: "token:x"}
		case 3:
			e = Entry{Status: 200, Who: SignedURL}
		case 4:
			e = Entry{Status: 200}
		}
		if err := l.Write(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines, refused, served, leftOut := 0, 0, 0, 0
	for line := range strings.Lines(string(p)) {
		var e Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		leftOut += e.LeftOut
		switch {
		case e.Status == 0: // the line written by Close
		case !e.isStranger():
			lines++
		case e.isRefused():
			refused++
		default:
			served++
		}
	}
	if lines != n/5 || refused < strangersAtOnce || refused == n/5*2 || served < strangersAtOnce || served == n/5*2 ||
		refused+served+leftOut != n/5*4 {
		t.Errorf("%d lines of others, %d of refused strangers, %d of served ones, %d left out", lines, refused, served,
			leftOut)
	}
}

// Refused logins over SSH do not suppress the lines about refused requests.
func TestStrangersOverSSH(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 2 * strangersAtOnce {
		if err := l.Write(Entry{Method: SSH, Path: "/login", Status: http.StatusForbidden}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Write(Entry{Method: http.MethodGet, Path: "/v1/info", Status: http.StatusUnauthorized}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte("/v1/info")) || bytes.Count(text, []byte("/login")) == 2*strangersAtOnce {
		t.Errorf("%s", text)
	}
}

// fullDisk is a file that accepts a given number of bytes (room), and then fails like a full disk.
type fullDisk struct {
	io.WriteCloser
	room int
}

func (d *fullDisk) Write(p []byte) (int, error) {
	n, err := d.WriteCloser.Write(p[:min(len(p), d.room)])
	d.room -= n
	if err == nil && n < len(p) {
		err = syscall.ENOSPC
	}
	return n, err
}

// If the disk was full, or a daemon was killed during a write, later lines are complete, and the
// first of them has the number of missing lines.
func TestLinesAfterAFullDisk(t *testing.T) {
	for _, room := range []int{0, 1, 50} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(`{"ts":"20`), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Write(Entry{Method: "GET"}); err != nil {
			t.Fatal(err)
		}
		disk := &fullDisk{WriteCloser: l.out, room: room}
		l.out = disk
		for range 2 {
			if err := l.Write(Entry{Method: "PUT"}); err == nil {
				t.Fatal("a line was written on a full disk")
			}
		}
		disk.room = 1 << 20
		for range 2 {
			if err := l.Write(Entry{Method: "DELETE"}); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		p, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var whole, lost []string
		for line := range strings.Lines(string(p)) {
			var e Entry
			if json.Unmarshal([]byte(line), &e) == nil {
				whole = append(whole, e.Method)
			}
			if e.Lost == 2 {
				lost = append(lost, e.Method)
			}
		}
		if strings.Join(whole, " ") != "GET DELETE DELETE" || strings.Join(lost, " ") != "DELETE" {
			t.Errorf("room for %d bytes: whole lines %q, two lost before %q:\n%s", room, whole, lost, p)
		}
	}
}
