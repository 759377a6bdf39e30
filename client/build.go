package client

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	v1 "github.com/forkd/forkd/api/v1"
)

// Build has the daemon build a snapshot from a Dockerfile or a recipe. If files is not nil, Build
// calls it to write the build context; BuildContext.Pack is such a function. The names of the
// entries begin with v1.BuildContext. If on is not nil, Build calls it with every event, except
// keepalives and the last event. If a step fails, the error is a *BuildError. If the client
// disconnects, the build stops, and the next build continues after the last complete step.
func (c *Client) Build(ctx context.Context, req BuildRequest, files func(*tar.Writer) error,
	on func(BuildEvent) error) (result BuildResult, err error) {
	if err := checkBuild(req); err != nil {
		return result, err
	}
	text, err := json.Marshal(req)
	if err != nil {
		return result, err
	}
	r, w := io.Pipe()
	defer r.Close() // makes the goroutine's next write fail, so that it returns
	packed := make(chan error, 1)
	go func() {
		err := writeBuild(w, text, files)
		packed <- err
		w.CloseWithError(err)
	}()
	resp, err := c.send(
		ctx,
		http.MethodPost,
		"/v1/builds",
		r,
		http.Header{"Content-Type": {v1.Tar}, "Accept": {v1.NDJSON}},
	)
	if err != nil {
		r.Close()
		if failed := <-packed; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
			err = failed // the archive is incomplete, so no build was requested
		}
		return result, err
	}
	defer resp.Body.Close()
	steps := buildSteps{}
	for events := eventsOf(resp.Body, maxBuildEvent); ; {
		var e BuildEvent
		if err := events.next(&e); err != nil {
			return result, broken(ctx, "build", 0, err)
		}
		switch {
		case e.Result != nil:
			return *e.Result, nil
		case e.Error != "":
			return result, steps.failed(&Error{Status: e.Status, Message: e.Error, Code: e.Code})
		case e.Keepalive:
			continue
		}
		steps.add(e)
		if on == nil {
			continue
		}
		if err := on(e); err != nil {
			return result, err
		}
	}
}

// BuildError says that a step of a build failed.
type BuildError struct {
	Number int    // number of the step, from 0
	Step   string // name of the step, such as "[stage-0 2/3] RUN make"
	Output string // last output of the step's command, at most 64 KiB
	Err    *Error // the daemon's error
}

func (e *BuildError) Error() string { return e.Err.Error() }

func (e *BuildError) Unwrap() error { return e.Err }

// Bounds on the output that is kept for a BuildError.
const (
	maxKeptOutput = 64 << 10 // bytes of the output of a step
	maxKeptSteps  = 64       // steps that write output at the same time
)

// buildSteps collects the names and the output of a build's steps from its events. The zero value
// is ready for use.
type buildSteps struct {
	names  []string
	output map[int]*ending // output of the running steps, by number
	first  *BuildError     // the step that failed first, without Err; nil if none has failed
}

func (b *buildSteps) add(e BuildEvent) {
	switch {
	case e.Plan != nil:
		b.names = e.Plan.Steps
	case e.Output != nil:
		n := e.Output.Number
		if b.output == nil {
			b.output = map[int]*ending{}
		}
		if b.output[n] == nil && len(b.output) < maxKeptSteps {
			b.output[n] = &ending{}
		}
		if end := b.output[n]; end != nil {
			end.add(e.Output.Line)
		}
	case e.Step != nil && e.Step.State == "failed" && b.first == nil:
		n := e.Step.Number
		b.first = &BuildError{Number: n, Step: fmt.Sprint("step ", n), Output: b.output[n].text()}
		if n >= 0 && n < len(b.names) {
			b.first.Step = b.names[n]
		}
	case e.Step != nil && e.Step.State != "started":
		delete(b.output, e.Step.Number)
	}
}

// failed returns the error of a build: a *BuildError if a step has failed.
func (b *buildSteps) failed(err *Error) error {
	if b.first == nil {
		return err
	}
	b.first.Err = err
	return b.first
}

// ending keeps the last bytes of an output.
type ending struct{ kept []byte }

func (e *ending) add(line string) {
	if e.kept = append(append(e.kept, line...), '\n'); len(e.kept) > 2*maxKeptOutput {
		e.cut()
	}
}

// cut drops whole lines at the beginning until the output is within the bound.
func (e *ending) cut() {
	if len(e.kept) <= maxKeptOutput {
		return
	}
	rest := e.kept[len(e.kept)-maxKeptOutput:]
	if i := bytes.IndexByte(rest, '\n'); i+1 < len(rest) {
		rest = rest[i+1:]
	}
	e.kept = append(e.kept[:0], rest...)
}

func (e *ending) text() string {
	if e == nil {
		return ""
	}
	e.cut()
	return strings.ToValidUTF8(strings.TrimSuffix(string(e.kept), "\n"), "\ufffd")
}

// maxBuildEvent bounds an event of a build, in bytes. The longest event holds the plan of a
// Dockerfile of 1 MiB, the largest that the daemon accepts.
const maxBuildEvent = 16 << 20

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
			return fmt.Errorf("pack the build context: %w", err)
		}
	}
	return out.Close()
}
