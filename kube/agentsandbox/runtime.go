package agentsandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
	"strings"
	"unicode/utf8"

	forkd "github.com/forkd/forkd/client"
)

// The directory of commands and files in a sandbox, as in agent-sandbox's runtime.
const (
	baseVariable = "SANDBOX_BASE_DIR"
	defaultBase  = "/app"
)

// Bounds of commands.
const (
	maxCommand     = 1 << 20 // bytes of the request
	maxOutput      = 1 << 20 // bytes of each output that an answer contains
	defaultSeconds = 300
)

// box is a sandbox, as the API of agent-sandbox's runtime shows it.
type box struct {
	*forkd.Client
	id   string
	base string // directory of commands and files
}

// serve answers a request of the runtime's API.
func (b *box) serve(ctx context.Context, w http.ResponseWriter, req *http.Request) {
	// http.ServeMux is not used, because it redirects paths such as /list//, which clients send.
	route, rest, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	method := http.MethodGet
	var f func(context.Context, http.ResponseWriter, string) error
	switch route {
	case "":
		answer(w, http.StatusOK, map[string]string{"status": "ok", "message": "Sandbox Runtime is active."})
		return
	case "execute", "upload":
		method = http.MethodPost
		f = func(ctx context.Context, w http.ResponseWriter, _ string) error {
			if route == "execute" {
				return b.execute(ctx, w, req)
			}
			return b.upload(ctx, w, req)
		}
	case "download":
		f = b.download
	case "list":
		f = b.list
	case "exists":
		f = b.exists
	default:
		refuse(w, http.StatusNotFound, "there is no such route: want execute, upload, download, list or exists")
		return
	}
	if req.Method != method {
		w.Header().Set("Allow", method)
		refuse(w, http.StatusMethodNotAllowed, "want the method "+method)
		return
	}
	written := &counted{ResponseWriter: w}
	if err := f(ctx, written, rest); err != nil {
		if written.any {
			panic(http.ErrAbortHandler) // the client must not take a part for the whole
		}
		fail(w, err)
	}
}

// counted knows whether an answer has begun.
type counted struct {
	http.ResponseWriter
	any bool
}

func (c *counted) WriteHeader(status int) {
	c.any = true
	c.ResponseWriter.WriteHeader(status)
}

func (c *counted) Write(p []byte) (int, error) {
	c.any = true
	return c.ResponseWriter.Write(p)
}

// clientError is an error of the request.
type clientError struct {
	status int
	text   string
}

func (e *clientError) Error() string { return e.text }

// fail answers with an error.
func fail(w http.ResponseWriter, err error) {
	var client *clientError
	var daemon *forkd.Error
	var argument *forkd.ArgumentError
	switch {
	case errors.As(err, &client):
		refuse(w, client.status, client.text)
	case errors.As(err, &argument):
		refuse(w, http.StatusBadRequest, argument.Error())
	case errors.Is(err, forkd.ErrNotFoundInSandbox):
		refuse(w, http.StatusNotFound, "File not found")
	// 401 and 403 are about the operator's token, not about the client's.
	case errors.As(err, &daemon) && daemon.Status >= 400 && daemon.Status != http.StatusUnauthorized &&
		daemon.Status != http.StatusForbidden:
		refuse(w, daemon.Status, daemon.Message)
	default:
		refuse(w, http.StatusBadGateway, "the node of the sandbox does not answer as it should")
	}
}

// refuse answers with the errors of agent-sandbox's router (detail) and runtime (message).
func refuse(w http.ResponseWriter, status int, text string) {
	answer(w, status, map[string]string{"detail": text, "message": text})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may have left
}

// at returns the path in the sandbox for a path of a client. Paths are relative to the base
// directory, also if they begin with a slash.
func (b *box) at(name string) (string, error) {
	if strings.ContainsRune(name, 0) {
		return "", &clientError{http.StatusBadRequest, "the path has a zero byte"}
	}
	full := path.Join(b.base, strings.TrimLeft(name, "/"))
	if base := path.Clean(b.base); full != base && !strings.HasPrefix(full, strings.TrimSuffix(base, "/")+"/") {
		return "", &clientError{http.StatusForbidden, "Access denied"}
	}
	return full, nil
}

// execute runs a command by the sandbox's shell, in the base directory.
func (b *box) execute(ctx context.Context, w http.ResponseWriter, req *http.Request) error {
	var in struct {
		Command        *string  `json:"command"`
		TimeoutSeconds *float64 `json:"timeout_seconds"`
	}
	d := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxCommand))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return &clientError{http.StatusBadRequest, "body: " + err.Error()}
	}
	if in.Command == nil {
		return &clientError{http.StatusUnprocessableEntity, "command: the field is missing"}
	}
	seconds := float64(defaultSeconds)
	if in.TimeoutSeconds != nil {
		seconds = *in.TimeoutSeconds
	}
	if math.IsNaN(seconds) || seconds <= 0 || seconds > maxDuration.Seconds() {
		return &clientError{http.StatusBadRequest, "timeout_seconds: want more than 0 and at most 3600"}
	}
	// The first shell enters the directory, which may not exist yet.
	const enter = `mkdir -p -- "$0" && cd -- "$0" && exec /bin/sh -c "$1"`
	var stdout, stderr capped
	end, err := b.ExecStream(ctx, b.id, forkd.ExecRequest{Args: []string{"/bin/sh", "-c", enter, b.base, *in.Command},
		TimeoutSecs: seconds}, &stdout, &stderr)
	if err != nil {
		return err
	}
	lost := stdout.more || stderr.more
	if stderr.more {
		stderr.WriteString("\n")
	}
	if lost {
		stderr.WriteString("forkd: only the first MiB of stdout and of stderr is returned\n")
	}
	w.Header().Set("Content-Type", "application/json")
	head, err := json.Marshal(map[string]any{"exit_code": end.ExitCode, "timed_out": end.Outcome == "timeout"})
	if err != nil {
		return err
	}
	// The answer is encoded in small parts, because JSON can be six times as long as the output.
	_, err = w.Write(head[:len(head)-1])
	return errors.Join(err, writeText(w, `,"stdout":`, stdout.Bytes()), writeText(w, `,"stderr":`, stderr.Bytes()),
		writeAll(w, []byte("}\n")))
}

func writeAll(w io.Writer, p []byte) error {
	_, err := w.Write(p)
	return err
}

// writeText writes text as a JSON string.
func writeText(w io.Writer, before string, text []byte) error {
	if err := writeAll(w, []byte(before+`"`)); err != nil {
		return err
	}
	for len(text) > 0 {
		n := min(len(text), 32<<10)
		for i := 1; i < utf8.UTFMax && n < len(text) && !utf8.RuneStart(text[n]); i++ {
			n-- // a character stays whole
		}
		part, err := json.Marshal(string(text[:n]))
		if err != nil {
			return err
		}
		if err := writeAll(w, part[1:len(part)-1]); err != nil {
			return err
		}
		text = text[n:]
	}
	return writeAll(w, []byte(`"`))
}

// capped keeps the first maxOutput bytes.
type capped struct {
	bytes.Buffer
	more bool
}

func (c *capped) Write(p []byte) (int, error) {
	kept := p[:min(len(p), maxOutput-c.Len())]
	c.more = c.more || len(kept) < len(p)
	c.Buffer.Write(kept)
	return len(p), nil
}

// upload writes a file. The name of the part is the path.
func (b *box) upload(ctx context.Context, w http.ResponseWriter, req *http.Request) error {
	kind, params, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		return &clientError{http.StatusUnsupportedMediaType, "want the Content-Type multipart/form-data"}
	}
	part, err := multipart.NewReader(req.Body, params["boundary"]).NextRawPart()
	if err != nil {
		return &clientError{http.StatusBadRequest, "body: " + err.Error()}
	}
	// part.FileName has no directories.
	_, params, err = mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil || params["name"] != "file" || params["filename"] == "" {
		return &clientError{http.StatusUnprocessableEntity, "file: the first part must have this name, and a filename"}
	}
	name := params["filename"]
	full, err := b.at(name)
	if err != nil {
		return err
	}
	body := &source{Reader: part}
	if err := b.WriteFile(ctx, b.id, full, body); err != nil {
		if body.err != nil {
			return &clientError{http.StatusBadRequest, "body: " + body.err.Error()}
		}
		return err
	}
	answer(w, http.StatusOK, map[string]string{"message": "File '" + name + "' uploaded successfully."})
	return nil
}

// source keeps the error of a reader, to tell it from errors of the writer.
type source struct {
	io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

func (b *box) download(ctx context.Context, w http.ResponseWriter, name string) error {
	full, err := b.at(name)
	if err != nil {
		return err
	}
	file, err := b.ReadFile(ctx, b.id, full)
	if err != nil {
		return err
	}
	defer file.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("X-Content-Type-Options", "nosniff") // the sandbox wrote the content
	w.Header().Set("Content-Disposition", "attachment")
	w.WriteHeader(http.StatusOK)
	_, err = io.Copy(w, file)
	return err
}

// entry is an entry of a directory in the runtime's API.
type entry struct {
	Name    string  `json:"name"`
	Size    int64   `json:"size"`
	Type    string  `json:"type"`     // "file" or "directory"
	ModTime float64 `json:"mod_time"` // seconds since 1970
}

func (b *box) list(ctx context.Context, w http.ResponseWriter, name string) error {
	full, err := b.at(name)
	if err != nil {
		return err
	}
	separator := "["
	w.Header().Set("Content-Type", "application/json")
	err = b.EachFile(ctx, b.id, full, 1, func(f forkd.File) error {
		e := entry{f.Name, f.Size, "file", float64(f.Modified.UnixNano()) / 1e9}
		if f.Type == "directory" {
			e.Type = "directory"
		}
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		before := separator
		separator = ","
		return writeAll(w, append([]byte(before), line...))
	})
	if err != nil {
		return err
	}
	if separator == "[" {
		return writeAll(w, []byte("[]"))
	}
	return writeAll(w, []byte("]"))
}

func (b *box) exists(ctx context.Context, w http.ResponseWriter, name string) error {
	full, err := b.at(name)
	if err != nil {
		return err
	}
	f, err := b.StatFile(ctx, b.id, full)
	if err != nil && !errors.Is(err, forkd.ErrNotFoundInSandbox) {
		return err
	}
	// A link whose target is missing has the type symlink.
	answer(w, http.StatusOK, map[string]any{"path": name, "exists": err == nil && f.Type != "symlink"})
	return nil
}
