package client

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"unicode/utf8"

	v1 "github.com/forkd/forkd/api/v1"
)

// Build has the daemon build a snapshot from a Dockerfile. files, if not nil, writes the build
// context; its names begin with v1.BuildContext. on is called with every event except the last one
// and those that only keep the connection alive. If the client disconnects, the build stops, and
// the next build resumes there.
func (c *Client) Build(ctx context.Context, req BuildRequest, files func(*tar.Writer) error,
	on func(BuildEvent) error) (result BuildResult, err error) {
	if !utf8.ValidString(req.Dockerfile) {
		return result, errors.New("build: the Dockerfile is not UTF-8, and JSON would change it: convert it")
	}
	for name, value := range req.Args {
		if !utf8.ValidString(name + value) {
			return result, fmt.Errorf("build: the value of the argument %q is not UTF-8, and JSON would change it: convert it", name)
		}
	}
	text, err := json.Marshal(req)
	if err != nil {
		return result, err
	}
	r, w := io.Pipe()
	defer r.Close() // makes the writer end
	go func() { w.CloseWithError(writeBuild(w, text, files)) }()
	resp, err := c.send(
		ctx,
		http.MethodPost,
		"/v1/builds",
		r,
		http.Header{"Content-Type": {v1.Tar}, "Accept": {v1.NDJSON}},
	)
	if err != nil {
		return result, err
	}
	defer resp.Body.Close()
	body := &eventReader{from: resp.Body}
	for events := json.NewDecoder(body); ; {
		var e BuildEvent
		body.left = maxBuildEvent
		if err := events.Decode(&e); err != nil {
			return result, broken(ctx, "build", 0, err)
		}
		switch {
		case e.Result != nil:
			return *e.Result, nil
		case e.Error != "":
			return result, &Error{Status: e.Status, Message: e.Error, Code: e.Code}
		case e.Keepalive:
			continue
		}
		if err := on(e); err != nil {
			return result, err
		}
	}
}

// maxBuildEvent bounds an event of a build, in bytes. The longest is the plan of a Dockerfile, which is at
// most a MiB.
const maxBuildEvent = 16 << 20

// eventReader fails where an event is too long: the decoder keeps it until it has it whole.
type eventReader struct {
	from io.Reader
	left int // bytes that may be read until the event is complete
}

func (r *eventReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, fmt.Errorf("the daemon sent an event of more than %d MiB", maxBuildEvent>>20)
	}
	n, err := r.from.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}

// writeBuild writes the archive of a build.
func writeBuild(w io.Writer, request []byte, files func(*tar.Writer) error) error {
	out := tar.NewWriter(w)
	err := out.WriteHeader(
		&tar.Header{Name: v1.BuildFile, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(request))},
	)
	if err != nil {
		return err
	}
	if _, err := out.Write(request); err != nil {
		return err
	}
	if files != nil {
		if err := files(out); err != nil {
			return errors.Join(errors.New("pack the build context"), err)
		}
	}
	return out.Close()
}
