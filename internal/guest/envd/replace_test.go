package envd

import (
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/envdproto/filesystem"
)

// put uploads content to path and returns the status and the answer.
func put(t *testing.T, base, path, content string) (int, string) {
	t.Helper()
	resp, err := http.Post(base+"/files?path="+url.QueryEscape(path), "application/octet-stream",
		strings.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// holds checks the content of a file, and that its directory has n entries.
func holds(t *testing.T, path, want string, n int) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s holds %q, %v; want %q", path, got, err, want)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != n {
		t.Errorf("beside %s: %v, %v; want %d entries", path, entries, err, n)
	}
}

func TestAnInterruptedUploadLeavesTheOldFile(t *testing.T) {
	base := serve(t)
	path := filepath.Join(t.TempDir(), "f")
	if status, text := put(t, base, path, "old"); status != http.StatusOK {
		t.Fatal(text)
	}
	at, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", at.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /files?path=%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000\r\n\r\nnew",
		url.QueryEscape(path))
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil { // read until the server closes the connection
		t.Fatal(err)
	}
	holds(t, path, "old", 1)
}

func TestAnUploadKeepsModeOwnerAndLinks(t *testing.T) {
	base := serve(t)
	dir := t.TempDir()
	path := dir + "/f"
	if err := os.WriteFile(path, []byte("old and longer"), 0o751); err != nil {
		t.Fatal(err)
	}
	uid := os.Getuid()
	if uid == 0 {
		uid = 12345
		if err := os.Chown(path, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"/link": "f", "/dangling": "made"} {
		if err := os.Symlink(to, dir+name); err != nil {
			t.Fatal(err)
		}
	}
	if status, text := put(t, base, dir+"/link", "new"); status != http.StatusOK {
		t.Fatal(text)
	}
	holds(t, path, "new", 3)
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o751 || info.Sys().(*syscall.Stat_t).Uid != uint32(uid) {
		t.Errorf("%v, %v", info, err)
	}
	if status, text := put(t, base, dir+"/dangling", "made"); status != http.StatusOK {
		t.Fatal(text)
	}
	holds(t, dir+"/made", "made", 4)
	if info, err := os.Lstat(dir + "/dangling"); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("the link became %v, %v", info, err)
	}
}

func TestAnUploadOntoADirectoryChangesNothing(t *testing.T) {
	base := serve(t)
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/d", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir + "/d", dir + "/d/"} {
		if status, text := put(t, base, path, "x"); status != http.StatusBadRequest ||
			!strings.Contains(text, "is a directory") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	if inside, err := os.ReadDir(dir + "/d"); err != nil || len(inside) > 0 {
		t.Errorf("the directory holds %v, %v", inside, err)
	}
}

// mountTmpfs mounts a file system of 64 KiB at a new directory.
func mountTmpfs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounts are not allowed here: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestAFullDiskLeavesTheOldFile(t *testing.T) {
	base := serve(t)
	path := mountTmpfs(t) + "/f"
	if status, text := put(t, base, path, "old"); status != http.StatusOK {
		t.Fatal(text)
	}
	if status, text := put(t, base, path, strings.Repeat("x", 1<<20)); status != http.StatusInsufficientStorage {
		t.Errorf("%d %s", status, text)
	}
	holds(t, path, "old", 1)
}

// Files that are mount points, such as /etc/hosts and /etc/machine-id in a guest, can be written.
func TestAMountedFileIsWritten(t *testing.T) {
	base := serve(t)
	dir := mountTmpfs(t)
	for _, name := range []string{"/source", "/f"} {
		if err := os.WriteFile(dir+name, []byte("old and longer"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(dir+"/source", dir+"/f", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir+"/f", unix.MNT_DETACH)
	if status, text := put(t, base, dir+"/f", "new"); status != http.StatusOK {
		t.Fatal(text)
	}
	holds(t, dir+"/f", "new", 2)
	holds(t, dir+"/source", "new", 2)
}

func TestAWatchSeesAnUploadAsAWriteOfTheFile(t *testing.T) {
	base := serve(t)
	c := fsClient(base)
	dir := t.TempDir()
	stream, err := c.WatchDir(t.Context(), connect.NewRequest(&filesystem.WatchDirRequest{Path: dir}))
	if err != nil || !stream.Receive() || stream.Msg().GetStart() == nil {
		t.Fatalf("start: %v, %v", stream.Msg(), err)
	}
	if status, text := put(t, base, dir+"/f", "x"); status != http.StatusOK {
		t.Fatal(text)
	}
	if err := os.Mkdir(dir+"/last", 0o755); err != nil {
		t.Fatal(err)
	}
	var got []string
	for stream.Receive() {
		ev := stream.Msg().GetFilesystem()
		if ev.GetName() == "last" {
			break
		}
		got = append(got, ev.GetName()+" "+ev.GetType().String())
	}
	if want := "f EVENT_TYPE_CREATE, f EVENT_TYPE_WRITE"; strings.Join(got, ", ") != want {
		t.Errorf("events: %v, want %s", got, want)
	}
}

// An upload to a path that cannot be a file is the client's error, and the message names the path.
func TestUploadWhereNoFileCanBe(t *testing.T) {
	base := serve(t)
	for _, path := range []string{"/sys/x", "/sys/kernel/x"} {
		status, body := put(t, base, path, "x")
		if status != http.StatusForbidden || strings.Contains(body, uploadPrefix) || !strings.Contains(body, path) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}
