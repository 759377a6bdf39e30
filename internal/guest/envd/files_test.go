package envd

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/forkd/forkd/internal/proto/envdproto/filesystem"
	"github.com/forkd/forkd/internal/proto/envdproto/filesystem/filesystemconnect"
)

func fsClient(url string) filesystemconnect.FilesystemClient {
	return filesystemconnect.NewFilesystemClient(http.DefaultClient, url, connect.WithProtoJSON())
}

func TestFilesystemCalls(t *testing.T) {
	c := fsClient(serve(t))
	dir := t.TempDir()
	ctx := t.Context()
	if _, err := c.MakeDir(ctx, connect.NewRequest(&filesystem.MakeDirRequest{Path: dir + "/a/b"})); err != nil {
		t.Fatal(err)
	}
	if _, err := c.MakeDir(ctx, connect.NewRequest(&filesystem.MakeDirRequest{Path: dir +
		"/a/b"})); connect.CodeOf(err) != connect.CodeAlreadyExists {
		t.Errorf("make an existing directory: %v", err)
	}
	os.WriteFile(dir+"/a/f", []byte("12345"), 0o640)
	os.Symlink("a", dir+"/link")
	if _, err := c.MakeDir(ctx, connect.NewRequest(&filesystem.MakeDirRequest{Path: dir +
		"/a/f"})); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("make a directory over a file: %v", err)
	}
	for depth, want := range map[uint32]string{0: "a link", 1: "a link", 2: "a b f link"} {
		got, err := c.ListDir(ctx, connect.NewRequest(&filesystem.ListDirRequest{Path: dir, Depth: depth}))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range got.Msg.Entries {
			names = append(names, e.Name)
		}
		if strings.Join(names, " ") != want {
			t.Errorf("depth %d: %v, want %s", depth, names, want)
		}
	}
	st, err := c.Stat(ctx, connect.NewRequest(&filesystem.StatRequest{Path: dir + "/a/f"}))
	if e := st.Msg.GetEntry(); err != nil || e.Size != 5 || e.Mode != 0o640 || e.Permissions != "-rw-r-----" ||
		e.Type != filesystem.FileType_FILE_TYPE_FILE || e.Owner == "" {
		t.Errorf("stat: %v, %v", e, err)
	}
	st, err = c.Stat(ctx, connect.NewRequest(&filesystem.StatRequest{Path: dir + "/link"}))
	if e := st.Msg.GetEntry(); err != nil || e.Type != filesystem.FileType_FILE_TYPE_DIRECTORY ||
		e.GetSymlinkTarget() != dir+"/a" || e.GetSymlinkText() != "a" || e.Permissions[0] != 'L' {
		t.Errorf("stat of a link: %v, %v", e, err)
	}
	if _, err := c.Move(ctx, connect.NewRequest(&filesystem.MoveRequest{Source: dir + "/a/f",
		Destination: dir + "/new/g"})); err != nil {
		t.Error(err)
	}
	if _, err := c.Move(ctx, connect.NewRequest(&filesystem.MoveRequest{Source: dir + "/a/f",
		Destination: dir + "/h"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("move a missing file: %v", err)
	}
	for range 2 {
		if _, err := c.Remove(ctx, connect.NewRequest(&filesystem.RemoveRequest{Path: dir + "/a"})); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if _, err := c.Stat(ctx, connect.NewRequest(&filesystem.StatRequest{Path: dir +
		"/a"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("stat of a removed directory: %v", err)
	}
}

func TestWatch(t *testing.T) {
	c := fsClient(serve(t))
	dir := t.TempDir()
	stream, err := c.WatchDir(t.Context(), connect.NewRequest(&filesystem.WatchDirRequest{Path: dir, Recursive: true,
		IncludeEntry: true}))
	if err != nil || !stream.Receive() || stream.Msg().GetStart() == nil {
		t.Fatalf("start: %v, %v", stream.Msg(), err)
	}
	made, err := c.CreateWatcher(t.Context(), connect.NewRequest(&filesystem.CreateWatcherRequest{Path: dir}))
	if err != nil {
		t.Fatal(err)
	}
	id := made.Msg.GetWatcherId()
	os.Mkdir(dir+"/sub", 0o755)
	if !stream.Receive() || stream.Msg().GetFilesystem().GetName() != "sub" ||
		stream.Msg().GetFilesystem().GetEntry().GetPath() != dir+"/sub" {
		t.Fatalf("got %v, %v", stream.Msg(), stream.Err())
	}
	os.Remove(dir + "/sub")
	var types []filesystem.EventType
	for len(types) < 2 {
		got, err := c.GetWatcherEvents(t.Context(), connect.NewRequest(&filesystem.GetWatcherEventsRequest{WatcherId: id}))
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range got.Msg.Events {
			types = append(types, ev.Type)
		}
	}
	if types[0] != filesystem.EventType_EVENT_TYPE_CREATE || types[1] != filesystem.EventType_EVENT_TYPE_REMOVE {
		t.Fatalf("events = %v", types)
	}
	if _, err := c.RemoveWatcher(t.Context(),
		connect.NewRequest(&filesystem.RemoveWatcherRequest{WatcherId: id})); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetWatcherEvents(t.Context(),
		connect.NewRequest(&filesystem.GetWatcherEventsRequest{WatcherId: id})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Fatalf("events of a removed watcher: %v", err)
	}
}

func TestMultipartUpload(t *testing.T) {
	base := serve(t)
	dir := t.TempDir()
	var body bytes.Buffer
	m := multipart.NewWriter(&body)
	for _, name := range []string{"/x/one", "/y/two"} {
		disposition := fmt.Sprintf(`form-data; name="file"; filename="%s%s"`, dir, name)
		part, _ := m.CreatePart(textproto.MIMEHeader{"Content-Disposition": {disposition}})
		io.WriteString(part, name)
	}
	m.Close()
	resp, err := http.Post(base+"/files", m.FormDataContentType(), &body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, _ := io.ReadAll(resp.Body)
	want := fmt.Sprintf(`[{"path":"%[1]s/x/one","name":"one","type":"file"},{"path":"%[1]s/y/two","name":"two","type":"file"}]`, dir)
	if strings.TrimSpace(string(got)) != want {
		t.Fatalf("reply %s, want %s", got, want)
	}
	if raw, err := os.ReadFile(dir + "/y/two"); err != nil || string(raw) != "/y/two" {
		t.Fatalf("content %q, %v", raw, err)
	}
}

func TestTokenAndSignedURLs(t *testing.T) {
	base := serve(t)
	init := `{"accessToken":"secret","envVars":{"K":"v"},"defaultUser":"root"}`
	resp, err := http.Post(base+"/init", "application/json", strings.NewReader(init))
	if err != nil || resp.StatusCode != http.StatusNoContent {
		t.Fatal(resp.Status, err)
	}
	path := filepath.Join(t.TempDir(), "f")
	os.WriteFile(path, []byte("text"), 0o600)
	sign := func(op string, expires string) string {
		text := path + ":" + op + "::secret"
		if expires != "" {
			text += ":" + expires
		}
		sum := sha256.Sum256([]byte(text))
		return "&signature=" + url.QueryEscape("v1_"+base64.RawStdEncoding.EncodeToString(sum[:])) +
			"&signature_expiration=" + expires
	}
	file := "/files?path=" + path
	for target, want := range map[string]int{
		"/health":                          204,
		"/envs":                            401,
		file:                               401,
		file + sign("read", ""):            200,
		file + sign("write", ""):           401,
		file + sign("read", "1000"):        401,
		file + sign("read", "99999999999"): 200,
	} {
		resp, err := http.Get(base + target)
		if err != nil || resp.StatusCode != want {
			t.Errorf("%s: %v, %v; want %d", target, resp.StatusCode, err, want)
		}
		resp.Body.Close()
	}
}
