package soak

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/test/torture/guest"
)

// Dir is the directory in which clients keep their files in a guest. It exists in the base.
const Dir = "/root/soak"

// The maximum number of files in a sandbox, and the maximum size of a file, in bytes.
const (
	maxFiles    = 4
	maxFileSize = 96 << 10
)

// ask sends a request to the program torture in a sandbox.
func (w *worker) ask(op string, b *box, words ...string) (guest.Report, outcome) {
	var r guest.Report
	p, out := w.exec(op, b, append([]string{guest.Program, "ask", guest.Socket}, words...))
	if out == done {
		if err := json.Unmarshal([]byte(p), &r); err != nil {
			w.corrupt(b, "torture's answer %q: %v", p, err)
			out = unknown
		}
	}
	return r, out
}

// exec runs a command in a sandbox. The command must succeed.
func (w *worker) exec(op string, b *box, args []string) (stdout string, out outcome) {
	var res client.ExecResult
	out = w.do(asked{op: op, box: b}, func(ctx context.Context) (err error) {
		res, err = w.d.Exec(ctx, b.id, client.ExecRequest{Args: args, TimeoutSecs: stepLimit.Seconds() - 30})
		return err
	})
	if out == done && (res.ExitCode != 0 || res.Error != "") {
		w.corrupt(b, "%q ended with %+v", args, res)
		out = unknown
	}
	return res.Stdout, out
}

// corrupt records that the content of a sandbox is damaged or wrong.
func (w *worker) corrupt(b *box, format string, args ...any) {
	w.rep.find(&w.rep.Corrupt, "%s: %s", b.name(), fmt.Sprintf(format, args...))
}

// mark sets a new, unique mark in a sandbox.
func (w *worker) mark(b *box) {
	mark := w.marks.Add(1)
	r, out := w.ask("mark", b, "mark", fmt.Sprint(mark))
	if out == refused {
		w.settle(b, b.state)
		return
	}
	b.now = b.now.marked(mark, r.Seq, out == done)
	if out == unknown {
		w.settle(b, b.state)
	}
}

// verify compares a running sandbox with the states that its client considers possible.
func (w *worker) verify(b *box) {
	r, out := w.ask("verify", b, "verify")
	if out != done {
		w.settle(b, b.state)
		return
	}
	fit, err := b.now.check(&r, w.cfg.Size)
	if err != nil {
		w.corrupt(b, "%v", err)
		w.kill(b)
		return
	}
	if fit, out = w.verifyFiles(b, fit); out != done {
		w.settle(b, b.state)
		return
	}
	if fit == nil {
		w.kill(b)
		return
	}
	if b.now.newest(fit) {
		b.now = fit
	}
	w.rep.Count(&w.rep.Verified)
}

// verifyFiles returns the points of p that match the files of a sandbox. If the files match no
// point, the result is empty.
func (w *worker) verifyFiles(b *box, p points) (fit points, out outcome) {
	text, out := w.exec("read files", b, []string{"/bin/sh", "-c", "cd " + Dir + " && sha256sum * 2>/dev/null; true"})
	if out != done {
		return nil, out
	}
	have := map[string]string{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 {
			have[f[1]] = f[0]
		}
	}
	var missed []string
	for _, q := range p {
		missed = nil
		for _, name := range slices.Sorted(maps.Keys(q.files)) {
			if have[name] != q.files[name] {
				missed = append(missed, fmt.Sprintf("%s has checksum %q, want %s", name, have[name], q.files[name]))
			}
		}
		if missed == nil {
			fit = append(fit, q)
		}
	}
	if fit == nil {
		w.corrupt(b, "files: %s", strings.Join(missed, "; "))
	}
	return fit, done
}

// writeFile writes a new file in a sandbox. Each file is written by only one request, so that a
// request with an unknown result affects no other file.
func (w *worker) writeFile(b *box) {
	if len(b.now[0].files) >= maxFiles {
		w.removeFile(b)
		return
	}
	name, p := w.name(), make([]byte, 1+w.rng.IntN(maxFileSize))
	for i := range p {
		p[i] = byte(w.rng.Uint32())
	}
	out := w.do(asked{op: "write file", box: b}, func(ctx context.Context) error {
		return w.d.WriteFile(ctx, b.id, path.Join(Dir, name), bytes.NewReader(p))
	})
	if out != done {
		w.settle(b, b.state)
		return
	}
	b.now = b.now.with(name, fmt.Sprintf("%x", sha256.Sum256(p)))
}

// removeFile removes a file that the sandbox has in all of its possible states.
func (w *worker) removeFile(b *box) {
	names := slices.Sorted(maps.Keys(b.now[0].files))
	if len(names) == 0 || len(b.now) > 1 {
		w.verify(b)
		return
	}
	name := names[w.rng.IntN(len(names))]
	out := w.do(asked{op: "remove file", box: b}, func(ctx context.Context) error {
		return w.d.RemoveFile(ctx, b.id, path.Join(Dir, name))
	})
	if out != refused {
		b.now = b.now.without(name)
	}
	if out != done {
		w.settle(b, b.state)
	}
}

// execRefused runs a command in a paused sandbox. The daemon must refuse it.
func (w *worker) execRefused(b *box) {
	out := w.do(asked{op: "exec while it stands", box: b, may: []string{"sandbox_state"}},
		func(ctx context.Context) error {
			_, err := w.d.Exec(ctx, b.id, client.ExecRequest{Args: []string{"true"}})
			return err
		})
	if out == done {
		w.rep.find(&w.rep.Unexpected, "a command ran in %s", b.name())
	}
	w.settle(b, b.state)
}

// meddle uses a sandbox of any client. That client may be using or deleting the sandbox at the same
// time.
func (w *worker) meddle() {
	var ids []string
	if out := w.do(asked{op: "list"}, func(ctx context.Context) error {
		list, err := w.d.Sandboxes(ctx)
		for _, s := range list {
			ids = append(ids, s.ID)
		}
		return err
	}); out != done || len(ids) == 0 {
		return
	}
	id := ids[w.rng.IntN(len(ids))]
	may := []string{"sandbox_not_found", "sandbox_state", "sandbox_cut_off", "busy"}
	try := func(op string, f func(ctx context.Context) error) { w.do(asked{op: op, id: id, may: may}, f) }
	switch w.rng.IntN(4) {
	case 0:
		try("exec", func(ctx context.Context) error {
			_, err := w.d.Exec(ctx, id, client.ExecRequest{Args: []string{"true"}})
			return err
		})
	case 1:
		try("stats", func(ctx context.Context) error { _, err := w.d.Stats(ctx, id); return err })
	case 2:
		try("console", func(ctx context.Context) error { _, err := w.d.Console(ctx, id); return err })
	case 3: // a timeout of ten seconds may be too short on a shared emulated CPU
		may = append(may, "timeout")
		try("ping", func(ctx context.Context) error { _, err := w.d.Ping(ctx, id); return err })
	}
}
