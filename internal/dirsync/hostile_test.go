package dirsync_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/dirsync"
)

// hostile is a daemon whose guest answers whatever a test says.
type hostile struct {
	files   []client.File
	content func(w io.Writer) // nil: "evil"
	removed []string
	list    func() []client.File   // nil: files
	pushed  atomic.Bool            // whether the guest has received files
	streams map[string]chan string // data of the streams "events" and "watch"; nil: there is none
}

const remoteDir = "/work"

func (h *hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := r.URL.Query().Get("path")
	switch route := path.Base(r.URL.Path); {
	case route == "sb-x":
		io.WriteString(w, `{"id":"sb-x","state":"running","pid":1}`)
	case h.streams[route] != nil:
		h.stream(w, r, h.streams[route])
	case route == "list" && h.list != nil:
		_ = json.NewEncoder(w).Encode(h.list())
	case route == "list":
		_ = json.NewEncoder(w).Encode(h.files)
	case route == "stat":
		for _, f := range h.files {
			if f.Path == at {
				_ = json.NewEncoder(w).Encode(f)
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"error":"no such file","code":"not_found_in_sandbox"}`)
	case r.Method == http.MethodPut:
		_, _ = io.Copy(io.Discard, r.Body)
		h.pushed.Store(true)
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodDelete:
		h.removed = append(h.removed, at)
		w.WriteHeader(http.StatusNoContent)
	case h.content != nil:
		h.content(w)
	default:
		io.WriteString(w, "evil")
	}
}

// TestHostileGuests gives the host the names, types, sizes and contents that a guest may invent.
// Nothing outside of the directory changes, and inside there are only files, directories and links
// without special bits.
func TestHostileGuests(t *testing.T) {
	now := time.Unix(1e9, 0)
	entry := func(at, permissions string, size int64) client.File {
		return client.File{Path: at, Permissions: permissions, Mode: 0o777, Size: size, Modified: now}
	}
	file := func(at string) client.File { return entry(at, "-rwxrwxrwx", 4) }
	dir := func(at string) client.File { return entry(at, "drwxrwxrwx", 0) }
	link := func(at string) client.File { return entry(at, "Lrwxrwxrwx", 4) }
	of := func(files ...client.File) *hostile { return &hostile{files: files} }
	linked := func(target string, files ...client.File) *hostile {
		for i := range files {
			if strings.HasPrefix(files[i].Permissions, "L") {
				files[i].LinkText = target
			}
		}
		return of(files...)
	}
	for name, x := range map[string]struct {
		*hostile
		want []string // files of the host afterwards
	}{
		"dots":             {hostile: of(file("/work/../victim"), file("/work/a/../../victim/x"))},
		"other directory":  {hostile: of(file("VICTIM/x"), file("/etc/x"), file("work/x"), file(""))},
		"a prefix":         {hostile: of(file("/workx/a"), file("/work"), file("/work/"))},
		"odd bytes":        {hostile: of(file("/work/\x1b[2J"), file("/work/a\nb"), file("/work/\ufffd"))},
		"a deep name":      {hostile: of(file("/work/" + strings.Repeat("d/", 300) + "f"))},
		"a long name":      {hostile: of(file("/work/" + strings.Repeat("n", 256)))},
		"devices":          {hostile: of(entry("/work/d", "Dcrw-rw-rw-", 4), entry("/work/p", "prw-rw-rw-", 4))},
		"no permissions":   {hostile: of(entry("/work/d", "", 4), entry("/work/e", "rwx", 4))},
		"set-user-id":      {of(entry("/work/s", "ugtrwxrwxrwx", 4)), []string{"s"}},
		"git":              {hostile: of(dir("/work/.git"), file("/work/.git/config"), file("/work/.GiT/hooks/x"))},
		"a negative size":  {hostile: of(entry("/work/f", "-rw-rw-rw-", -1))},
		"a huge size":      {hostile: of(entry("/work/f", "-rw-rw-rw-", math.MaxInt64))},
		"a shorter file":   {hostile: of(entry("/work/f", "-rw-rw-rw-", 5))},
		"an endless file":  {hostile: &hostile{files: of(file("/work/f")).files, content: endless}},
		"twice":            {hostile: of(dir("/work/f"), file("/work/f"))},
		"below a file":     {of(file("/work/f"), file("/work/f/g")), []string{"f"}},
		"an absolute link": {hostile: linked("VICTIM", link("/work/l"))},
		"a link out":       {hostile: linked("../v", link("/work/l"))},
		"a link up":        {linked("..", dir("/work/d"), link("/work/d/l")), []string{"d", "d/l"}},
		"up by a link":     {hostile: linked("d/l/..", link("/work/m"))},
		"through a link":   {linked("../victim", link("/work/l"), file("/work/l/f")), []string{"l", "l/f"}},
		"a missing link":   {hostile: of(link("/work/l"))},
		"an endless link":  {hostile: linked(strings.Repeat("l", 5000), link("/work/l"))},
		"odd bytes (link)": {hostile: linked("\x1b[2J", link("/work/l"))},
		"git by a link":    {linked(".git", link("/work/x"), file("/work/x/hooks/post-checkout")), []string{"x"}},
		"a bare git":       {of(dir("/work/objects"), dir("/work/refs"), file("/work/HEAD")), []string{"objects", "refs"}},
		"Mercurial":        {hostile: of(dir("/work/.hg"), file("/work/.hg/hgrc"))},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			victim := filepath.Join(base, "victim")
			write(t, filepath.Join(victim, "mine"), "mine")
			for i := range x.files {
				x.files[i].Path = strings.Replace(x.files[i].Path, "VICTIM", victim, 1)
				x.files[i].LinkText = strings.Replace(x.files[i].LinkText, "VICTIM", victim, 1)
			}
			p := serveHostile(t, x.hostile, filepath.Join(base, "here"))
			s := p.open(t)
			if err := s.Once(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.check(t, victim, x.want)
		})
	}
}

// The sync ends if the names of the guest's files would take more memory than the bound permits.
func TestEndlessNames(t *testing.T) {
	long := remoteDir + strings.Repeat("/"+strings.Repeat("n", 240), 16)
	var files []client.File
	for i := range 17_500 {
		files = append(files, client.File{Path: fmt.Sprint(long, i), Permissions: "-rw-r--r--"})
	}
	p := serveHostile(t, &hostile{files: files}, filepath.Join(t.TempDir(), "here"))
	err := p.open(t).Once(t.Context())
	if !errors.As(err, new(*dirsync.StopError)) || !strings.Contains(err.Error(), "names") {
		t.Errorf("%v, want a *StopError", err)
	}
}

// check verifies the names of the files of the host. No file may have a special type or mode bit,
// or be writable for other users.
func (p *pair) check(t *testing.T, victim string, want []string) {
	t.Helper()
	if got := tree(t, victim); fmt.Sprint(got) != "map[mine:-rw-r--r-- mine]" {
		t.Errorf("the victim has %q", got)
	}
	got := tree(t, p.Dir)
	for _, name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
	if len(got) != len(want) {
		t.Errorf("here %q, want %q", got, want)
	}
	for name := range got {
		info, err := os.Lstat(p.here(name))
		if err != nil {
			t.Fatal(err)
		}
		mode := info.Mode()
		if mode&^(fs.ModePerm|fs.ModeDir|fs.ModeSymlink) != 0 || mode&fs.ModeSymlink == 0 && mode&0o022 != 0 {
			t.Errorf("%s: %v", name, mode)
		}
	}
}

func serveHostile(t *testing.T, h *hostile, dir string) *pair {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	cl, err := client.New(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return &pair{Client: cl, Options: dirsync.Options{Dir: dir, ID: "sb-x", Remote: remoteDir, Both: true}}
}

// endless writes until the reader leaves.
func endless(w io.Writer) {
	block := make([]byte, 64<<10)
	for range 1 << 20 {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

// While a file of the guest arrives for a directory of the host, the directory is replaced by a
// link. The files in the link's target do not change.
func TestDirectorySwappedForALink(t *testing.T) {
	base := t.TempDir()
	victim, here := filepath.Join(base, "victim"), filepath.Join(base, "here")
	write(t, filepath.Join(victim, "mine"), "mine")
	swaps := 0
	h := &hostile{files: []client.File{
		{Path: "/work/d", Permissions: "drwxr-xr-x", Mode: 0o755},
		{Path: "/work/d/mine", Permissions: "-rw-r--r--", Mode: 0o644, Size: 4, Modified: time.Unix(1e9, 0)},
	}}
	h.content = func(w io.Writer) {
		swaps++
		dir := filepath.Join(here, "d")
		if err := errors.Join(os.RemoveAll(dir), os.Symlink(victim, dir)); err != nil {
			t.Error(err)
		}
		io.WriteString(w, "evil")
	}
	p := serveHostile(t, h, here)
	_ = p.open(t).Once(t.Context()) // what it reports does not matter
	if swaps == 0 {
		t.Error("nothing was swapped")
	}
	if got := tree(t, victim); fmt.Sprint(got) != "map[mine:-rw-r--r-- mine]" {
		t.Errorf("the victim has %q", got)
	}
}

// If the guest has too many files, the sync ends with an error that says so.
func TestTooManyFiles(t *testing.T) {
	h := &hostile{files: make([]client.File, 0, 200_001)}
	for i := range cap(h.files) {
		h.files = append(h.files, client.File{Path: fmt.Sprint("/work/", i), Permissions: "-rw-r--r--"})
	}
	p := serveHostile(t, h, filepath.Join(t.TempDir(), "here"))
	err := p.open(t).Once(t.Context())
	if !errors.As(err, new(*dirsync.StopError)) || !strings.Contains(err.Error(), "--exclude") || len(tree(t, p.Dir)) > 0 {
		t.Errorf("%v, %d files", err, len(tree(t, p.Dir)))
	}
}

// stream sends what the test sends, until the test closes the channel.
func (h *hostile) stream(w http.ResponseWriter, r *http.Request, from chan string) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case data, ok := <-from:
			if !ok {
				return
			}
			fmt.Fprintf(w, "data: %s\n\n", data)
		}
	}
}

// evilFile returns a regular file of the guest with the content "evil".
func evilFile(name string) client.File {
	return client.File{Path: "/work/" + name, Permissions: "-rw-r--r--", Mode: 0o644, Size: 4, Modified: time.Unix(1e9, 0)}
}

// A guest replaces a directory by a file. The files that are not synced stay on the host.
func TestExcludedFilesOfAReplacedDirectoryStay(t *testing.T) {
	dir := client.File{Path: "/work/d", Permissions: "drwxr-xr-x", Mode: 0o755}
	for _, prefer := range []string{"", "guest"} {
		h := &hostile{files: []client.File{dir, evilFile("d/a")}}
		p := serveHostile(t, h, filepath.Join(t.TempDir(), "here"))
		p.Prefer, p.Exclude = prefer, []string{"**/*.o"}
		s := p.open(t)
		if err := s.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
		write(t, p.here("d/.git/config"), "mine")
		write(t, p.here("d/x.o"), "mine")
		h.files = []client.File{evilFile("d")}
		if err := s.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := tree(t, p.Dir); got["d/.git/config"] == "" || got["d/x.o"] == "" || got["d/a"] == "" {
			t.Errorf("prefer %q: %q", prefer, got)
		}
	}
}

// If a guest lists no file at all, for example because something is mounted over the directory, the
// files of the host stay.
func TestEmptyListRemovesNothing(t *testing.T) {
	h := &hostile{files: []client.File{evilFile("a"), evilFile("b")}}
	p := serveHostile(t, h, filepath.Join(t.TempDir(), "here"))
	s := p.open(t)
	if err := s.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.files = []client.File{}
	if err := s.Once(t.Context()); !errors.As(err, new(*dirsync.StopError)) || len(tree(t, p.Dir)) != 2 {
		t.Errorf("%v, %q", err, tree(t, p.Dir))
	}
}

// If the directory of the host cannot be read, nothing is removed in the sandbox.
func TestUnreadableDirectoryRemovesNothing(t *testing.T) {
	h := &hostile{files: []client.File{evilFile("a")}}
	p := serveHostile(t, h, filepath.Join(t.TempDir(), "here"))
	s := p.open(t)
	if err := s.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Close() // from now on, each access fails
	if err := s.Once(t.Context()); err == nil || len(h.removed) > 0 {
		t.Errorf("%v, removed %q", err, h.removed)
	}
}

// The sandbox is rolled back to a time before it had a file. The file stays on the host, even if
// the rollback happens after the state of the sandbox was read, or while no events are received.
func TestRollbackRemovesNothing(t *testing.T) {
	for _, lost := range []bool{false, true} {
		h := &hostile{files: []client.File{evilFile("a"), evilFile("b")},
			streams: map[string]chan string{"events": make(chan string), "watch": make(chan string)}}
		var rolledBack atomic.Bool
		var once sync.Once
		events := h.streams["events"]
		h.list = func() []client.File {
			if !rolledBack.Load() || h.pushed.Load() {
				return h.files
			}
			once.Do(func() {
				if !lost { // the daemon sends the event before the sandbox answers
					events <- `{"id":"1","type":"sandbox.restoring","sandbox_id":"sb-x","reason":"rollback"}`
					time.Sleep(time.Second)
				}
			})
			return h.files[1:]
		}
		p := serveHostile(t, h, filepath.Join(t.TempDir(), "here"))
		reports := make(chan string, 100)
		p.Report = func(r dirsync.Report) { reports <- r.Op + " " + r.Path }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.open(t).Run(ctx) }()
		for report := ""; report != "in_sync "; report = <-reports {
		}
		h.streams["watch"] <- `{"type":"begun"}` // both streams are connected now
		events <- `{"id":"","type":"sandbox.labels"}`
		rolledBack.Store(true)
		if lost {
			events <- "" // no JSON: the client ends the connection
		}
		h.streams["watch"] <- `{"type":"remove","name":"a"}`
		for report := ""; report != "to_sandbox a" && report != "removed_here a"; report = <-reports {
		}
		if got := tree(t, p.Dir); got["a"] == "" {
			t.Errorf("lost events: %v: %q", lost, got)
		}
		cancel()
		<-ended
	}
}
