package audit

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
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
	if err := l.Write(Entry{Time: time.Unix(1, 0), Method: "GET", Path: nasty, UserAgent: nasty, Status: 401}); err != nil {
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

// Who may send anything cannot fill the disk with a few requests, in whichever field it ends up.
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
