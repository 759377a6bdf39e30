package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
)

// first is the measurement of first answers.
type first struct {
	*bench
	info    report.Host
	web     *server
	archive string // path of the archive of the snapshot
	bytes   int64  // bytes of the artifact
}

const firstTag = "first"

// The repositories of the snapshot. Only one of them has a list of hot frames.
const (
	plainRepo = "bench/plain"
	hotRepo   = "bench/hot"
)

// measureFirst bakes a snapshot, pushes it, and then measures each way to get the first answer of a sandbox on another
// host.
func (b *bench) measureFirst(ctx context.Context, info report.Host) (*report.Report, error) {
	var undo cleanup.Stack
	defer undo.Run()
	home, h, err := newPeer(info, &undo)
	if err != nil {
		return nil, err
	}
	f := &first{bench: b, info: info, archive: filepath.Join(home.Dir, "archive.tar")}
	b.Progress("baking %s", b.opt.recipe)
	err = home.WithManager(lab.Options{}, func(m *lab.Manager) error {
		return home.Bake(ctx, m, firstTag, b.opt.recipe, 0)
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/v2/", registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	mux.HandleFunc("/archive", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, f.archive) })
	if f.web, err = serveHere(mux, b.opt.link<<20); err != nil {
		return nil, err
	}
	undo.Add(f.web.stop)
	b.Progress("pushing, with two first runs")
	for _, repo := range []string{plainRepo, hotRepo} {
		to, err := hub.ParseRemote("to", f.web.host+"/"+repo+":1")
		if err != nil {
			return nil, err
		}
		sent, err := h.Push(ctx, "bench", firstTag, to, repo == hotRepo, ignore)
		if err != nil {
			return nil, err
		}
		f.bytes = sent.Bytes()
	}
	if err := (&host{hub: h}).packTo(ctx, firstTag, f.archive); err != nil {
		return nil, err
	}
	if err := b.Rounds(b.opt.rounds, func() error { return f.round(ctx) }); err != nil {
		return nil, err
	}
	r := b.Report(info)
	r.Tables = append(r.Tables, f.table())
	return r, nil
}

// newPeer returns the parts of a daemon, with an empty store.
func newPeer(info report.Host, undo *cleanup.Stack) (*lab.Daemon, *hub.Hub, error) {
	d, err := lab.NewDaemon(info, undo)
	if err != nil {
		return nil, nil, err
	}
	h, err := d.Hub(undo)
	return d, h, err
}

// round measures each way to get a first answer, one time.
func (f *first) round(ctx context.Context) error {
	servers := []*server{f.web}
	err := f.run("copy of the archive, no sandbox", "HTTP", f.opt.recipe, servers, func() error { return f.download(ctx) })
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("skopeo"); err == nil {
		dir, err := os.MkdirTemp(filepath.Dir(f.archive), "skopeo-")
		if err != nil {
			return err
		}
		s := &skopeo{bench: f.bench, dir: dir}
		pull := func() error { return s.pull(ctx, f.web.host+"/"+plainRepo, "1", "first") }
		err = f.run("pull, no sandbox", "skopeo", f.opt.recipe, servers, pull)
		if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
			return err
		}
	}
	for _, way := range []struct {
		what, repo string
		pull       func(*hub.Hub) pullFunc
	}{
		{"pull, fork, eval", plainRepo, func(h *hub.Hub) pullFunc { return h.Pull }},
		{"fork while it arrives, eval", plainRepo, func(h *hub.Hub) pullFunc { return h.PullLazily }},
		{"the same, with hot frames", hotRepo, func(h *hub.Hub) pullFunc { return h.PullLazily }},
	} {
		if err := f.answer(ctx, way.what, way.repo, way.pull); err != nil {
			return err
		}
	}
	return nil
}

// pullFunc is hub.Hub.Pull or hub.Hub.PullLazily.
type pullFunc = func(ctx context.Context, who, tag string, r hub.Remote, on func(hub.Progress)) (hub.Pulled, error)

// answer measures the time until a sandbox has answered on a host that has no part of the snapshot.
func (f *first) answer(ctx context.Context, what, repo string, of func(*hub.Hub) pullFunc) error {
	var undo cleanup.Stack
	defer undo.Run()
	away, h, err := newPeer(f.info, &undo)
	if err != nil {
		return err
	}
	from, err := hub.ParseRemote("from", f.web.host+"/"+repo+":1")
	if err != nil {
		return err
	}
	pull := of(h)
	return away.WithManager(lab.Options{}, func(m *lab.Manager) error {
		err := f.run(what, "forkd", f.opt.recipe, []*server{f.web}, func() error {
			if _, err := pull(ctx, "bench", firstTag, from.Under(hub.Off), ignore); err != nil {
				return err
			}
			forked, err := m.Fork(ctx, sandbox.ForkRequest{Tag: firstTag, N: 1})
			if err != nil {
				return err
			}
			guest := agentclient.New(agentclient.DialUnix(m.VsockSocket(forked.Sandboxes[0].ID)))
			r, err := guest.Eval(ctx, "6 * 7", agentclient.EvalOptions{})
			if err == nil && (r.Result == nil || *r.Result != "42") {
				err = fmt.Errorf("the sandbox answers %+v", r)
			}
			return err
		})
		m.KillAll()
		_, deleted := away.Store.Delete(firstTag, store.DeleteForce) // stops the fetch of the rest of the snapshot
		return errors.Join(err, deleted)
	})
}

// download copies the archive through the link, and waits until it is on disk.
func (f *first) download(ctx context.Context) (err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.web.host+"/archive", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	out, err := os.Create(f.archive + ".copy")
	if err != nil {
		return err
	}
	_, err = io.Copy(out, resp.Body)
	return errors.Join(err, out.Sync(), out.Close(), os.Remove(out.Name()))
}

// table returns the medians of all rounds.
func (f *first) table() *report.Table {
	t := &report.Table{Title: "Until a sandbox on another host has evaluated an expression (median of the rounds)",
		Columns: []report.Column{{Name: "way"}, {Name: "program"}, {Name: "rounds"}, {Name: "ms", Digits: 0},
			{Name: "MiB received", Digits: 2}, {Name: "% of the artifact", Digits: 1}}}
	for _, o := range f.ops {
		mib := report.Quantile(o.received, 0.5)
		t.Add(o.what, o.program, len(o.times), report.Cell(report.Quantile(report.Millis(o.times...), 0.5)),
			report.Cell(mib), report.Cell(100*mib/(float64(f.bytes)/(1<<20))))
	}
	t.Notef("the snapshot: %s, %.1f MiB compressed; the link: %d MiB per second", f.opt.recipe,
		float64(f.bytes)/(1<<20), f.opt.link)
	t.Notef("received: bytes of all connections with the registry until the answer, with headers. While a snapshot " +
		"arrives, this includes what the daemon has fetched in the background")
	return t
}
