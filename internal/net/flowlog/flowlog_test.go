package flowlog

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// full is a file whose first writes fail, as if the disk were full.
type full struct {
	*os.File
	times int
}

func (f *full) Write(p []byte) (int, error) {
	if f.times--; f.times >= 0 {
		return 0, errors.New("no space left on device")
	}
	return f.File.Write(p)
}

// Records that could not be written are counted, and the next line has their number.
func TestLinesSayWhatIsLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	l := New()
	l.Put(Record{Sandbox: "nobody wants it"})
	l.Lost()
	for len(l.records) > 0 {
		time.Sleep(time.Millisecond)
	}
	l.Set(&full{File: file, times: 2})
	for range 4 {
		l.Put(Record{Sandbox: "sb-1", Name: "a\"\n<b>", UpBytes: 1})
	}
	var lines []string
	for end := time.Now().Add(20 * time.Second); len(lines) < 2 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	}
	for i, lost := range []uint64{3, 0} {
		var r Record
		if err := json.Unmarshal([]byte(lines[i]), &r); err != nil || r.Sandbox != "sb-1" || r.Name != "a\"\n<b>" ||
			r.Lost != lost {
			t.Errorf("%s: %v, want %d lost", lines[i], err, lost)
		}
	}
	l.Set(nil)
	if _, err := file.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the file of an ended log is open: %v", err)
	}
}
