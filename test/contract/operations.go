package contract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/forkd/forkd/client"
)

// operation has the Go client's implementation of an operation, and the method's name in the
// documentation.
type operation struct {
	method string
	call   func(r *runner, of *Object, with arguments) (any, error)
}

// Methods returns the Go client's method for each operation.
func Methods() map[string]string {
	methods := map[string]string{}
	for op, o := range operations() {
		methods[op] = o.method
	}
	return methods
}

func operations() map[string]operation {
	all := map[string]operation{}
	for _, part := range []map[string]operation{
		clientOperations(), sandboxOperations(), outsideOperations(), codeOperations(), commandOperations(), fileOperations(),
		snapshotOperations(),
	} {
		for op, o := range part {
			all[op] = o
		}
	}
	return all
}

// on(of) returns the client on which an operation is called or, if there is none, the scenario's
// client.
func (r *runner) on(of *Object) *client.Client {
	if of != nil {
		if c, ok := of.handle.(*client.Client); ok {
			return c
		}
	}
	return r.client
}

// id returns the id of the sandbox on which an operation is called.
func id(of *Object) string {
	if of == nil {
		return ""
	}
	return fmt.Sprint(of.Fields["id"])
}

func clientOperations() map[string]operation {
	return map[string]operation{
		"client.new": {"client.New, client.Default", func(r *runner, _ *Object, with arguments) (any, error) {
			c, err := client.New(with.text("url"), with.text("token"), client.WithRetries(with.whole("retries", 0)))
			if err != nil {
				return nil, err
			}
			r.undo = append(r.undo, c.Close)
			return &Object{Kind: "client", handle: c}, nil
		}},
		"client.version": {"Client.Version", func(r *runner, of *Object, _ arguments) (any, error) {
			return fieldsAnd(r.on(of).Version(r.ctx))
		}},
		"client.host_metrics": {"Client.HostMetrics", func(r *runner, of *Object, with arguments) (any, error) {
			req, err := metricsOf(with)
			if err != nil {
				return nil, err
			}
			return fieldsAnd(r.on(of).HostMetrics(r.ctx, req))
		}},
		"client.healthy": {"Client.Healthy", func(r *runner, of *Object, _ arguments) (any, error) {
			return r.on(of).Healthy(r.ctx) == nil, nil
		}},
		"client.close": {"Client.Close", func(r *runner, of *Object, _ arguments) (any, error) {
			r.on(of).Close()
			return nil, nil
		}},
		"client.build":     {"client.OpenBuildContext, Client.Build", build},
		"client.fork":      {"Client.Fork, client.Children", fork},
		"client.sandboxes": {"Client.SandboxPage", list},
		"sandbox.list":     {"Client.SandboxPage", list},
		"client.events": {"Client.Events", func(r *runner, of *Object, with arguments) (any, error) {
			ctx, cancel := context.WithCancel(r.ctx)
			r.undo = append(r.undo, cancel)
			f, req := newFeed(), client.EventsRequest{After: with.text("after"), Labels: with.labels()}
			if box := with.text("sandbox"); box != "" {
				req.Sandboxes = []string{box}
			}
			begun := make(chan struct{})
			req.Begun = func() { close(begun) }
			go func() { f.ended <- r.on(of).Events(ctx, req, func(e client.Event) error { return f.take(e) }) }()
			select {
			case <-begun:
			case err := <-f.ended:
				cancel()
				return nil, err
			}
			return &Object{Kind: "events", handle: following{f, cancel}}, nil
		}},
		"events.next":  {"the callback of Client.Events", nextEvent},
		"events.close": {"the end of the context of Client.Events", endEvents},
	}
}

// following is a stream that the runner reads in the background, with the function that ends the
// stream.
type following struct {
	*feed
	end context.CancelFunc
}

func nextEvent(_ *runner, of *Object, with arguments) (any, error) {
	f, ok := of.handle.(following)
	if !ok {
		return nil, errors.New("it is no stream")
	}
	return f.next(with)
}

func endEvents(_ *runner, of *Object, _ arguments) (any, error) {
	if f, ok := of.handle.(following); ok {
		f.end()
	}
	return nil, nil
}

func fork(r *runner, of *Object, with arguments) (any, error) {
	var req client.ForkRequest
	req.N = 1
	if err := with.into(&req); err != nil {
		return nil, err
	}
	if of != nil && of.Kind == "sandbox" {
		req.SourceID = id(of)
	}
	kids, err := client.Children(r.on(of).Fork(r.ctx, req))
	if err != nil {
		return nil, err
	}
	return sandboxObjects(kids), nil
}

func list(r *runner, of *Object, with arguments) (any, error) {
	boxes, _, err := r.on(of).SandboxPage(r.ctx, client.PageRequest{Labels: with.labels()})
	if err != nil {
		return nil, err
	}
	return sandboxObjects(boxes), nil
}

func sandboxMetrics(r *runner, of *Object, with arguments) (any, error) {
	req, err := metricsOf(with)
	if err != nil {
		return nil, err
	}
	return fieldsAnd(r.client.Metrics(r.ctx, id(of), req))
}

func sandboxOperations() map[string]operation {
	state := func(call func(c *client.Client, ctx context.Context, id string) (client.Sandbox, error)) func(*runner,
		*Object, arguments) (any, error) {
		return func(r *runner, of *Object, _ arguments) (any, error) {
			return fieldsAnd(call(r.client, r.ctx, id(of)))
		}
	}
	return map[string]operation{
		"sandbox.create": {"Client.Fork", func(r *runner, of *Object, with arguments) (any, error) {
			made, err := fork(r, of, with)
			if err != nil {
				return nil, err
			}
			return at(made, "0"), nil
		}},
		"sandbox.connect": {"Client.Sandbox", func(r *runner, of *Object, with arguments) (any, error) {
			s, err := r.on(of).Sandbox(r.ctx, with.text("id"))
			if err != nil {
				return nil, err
			}
			return object("sandbox", s, s.ID)
		}},
		"sandbox.info": {"Client.Sandbox", state((*client.Client).Sandbox)},
		"sandbox.stats": {"Client.Stats", func(r *runner, of *Object, _ arguments) (any, error) {
			return fieldsAnd(r.client.Stats(r.ctx, id(of)))
		}},
		"sandbox.metrics": {"Client.Metrics", sandboxMetrics},
		"sandbox.ping": {"Client.Ping", func(r *runner, of *Object, _ arguments) (any, error) {
			return fieldsAnd(r.client.Ping(r.ctx, id(of)))
		}},
		"sandbox.kill": {"Client.Kill", func(r *runner, of *Object, _ arguments) (any, error) {
			return found(r.client.Kill(r.ctx, id(of)), client.ErrSandboxNotFound)
		}},
		"sandbox.set_labels": {"Client.ChangeLabels", func(r *runner, of *Object, with arguments) (any, error) {
			var req struct {
				Labels map[string]*string `json:"labels"`
			}
			if err := with.into(&req); err != nil {
				return nil, err
			}
			s, err := fieldsAnd(r.client.ChangeLabels(r.ctx, id(of), req.Labels))
			return at(s, "labels"), err
		}},
		"sandbox.set_ttl": {"Client.SetTTL", func(r *runner, of *Object, with arguments) (any, error) {
			var req struct {
				TTL float64 `json:"ttl_secs"`
			}
			if err := with.into(&req); err != nil {
				return nil, err
			}
			return fieldsAnd(r.client.SetTTL(r.ctx, id(of), req.TTL))
		}},
		"sandbox.fork": {"Client.Fork, client.Children", fork},
		"sandbox.branch": {"Client.Branch, Client.Fork", func(r *runner, of *Object, with arguments) (any, error) {
			snap, err := r.client.Branch(r.ctx, id(of), client.BranchRequest{Tag: with.text("tag"), Mode: with.text("mode"),
				DiskOnly: with["memory"] == false, NoWait: with["wait"] == false})
			if err != nil {
				return nil, err
			}
			made, err := object("snapshot", snap, snap.Tag)
			kids := any([]any{})
			if n := with.whole("n", 0); err == nil && n > 0 {
				kids, err = fork(r, made, arguments{"snapshot": snap.Tag, "n": n})
			}
			return map[string]any{"snapshot": made, "sandboxes": kids}, err
		}},
		"sandbox.rollback": {"Client.RollbackWith", func(r *runner, of *Object, with arguments) (any, error) {
			return fieldsAnd(r.client.RollbackWith(r.ctx, id(of), client.RollbackRequest{To: with.text("to"),
				Unique: with.text("unique")}))
		}},
		"sandbox.promote": {"Client.Promote", func(r *runner, of *Object, with arguments) (any, error) {
			return fieldsAnd(r.client.Promote(r.ctx, id(of), client.PromoteRequest{From: with.text("child"),
				Tag: with.text("tag"), Mode: with.text("mode"), Unique: with.text("unique")}))
		}},
		"sandbox.apply":   {"Client.Apply", apply},
		"sandbox.try_all": {"Client.Try", tryAll},
		"sandbox.diff":    {"Client.Diff", diff},
		"sandbox.export":  {"Client.Export", export},
		"sandbox.pause":   {"Client.Pause", state((*client.Client).Pause)},
		"sandbox.resume": {"Client.ResumeWith", func(r *runner, of *Object, with arguments) (any, error) {
			return fieldsAnd(r.client.ResumeWith(r.ctx, id(of), client.ResumeRequest{Unique: with.text("unique")}))
		}},
		"sandbox.suspend": {"Client.Suspend", state((*client.Client).Suspend)},
		"sandbox.console": {"Client.Console", func(r *runner, of *Object, _ arguments) (any, error) {
			p, err := r.client.Console(r.ctx, id(of))
			return string(p), err
		}},
		"sandbox.logs": {"Client.Logs", func(r *runner, of *Object, with arguments) (any, error) {
			logs, err := r.client.Logs(r.ctx, id(of), client.LogsRequest{Tail: with.text("tail"), Since: with.text("since")})
			if err != nil {
				return nil, err
			}
			return readAll(logs, true)
		}},
		"best_of": {"client.BestOf", bestOf},
	}
}

func outsideOperations() map[string]operation {
	return map[string]operation{
		"sandbox.url": {"Client.PortURL", func(r *runner, of *Object, with arguments) (any, error) {
			var req client.PortURLRequest
			if err := (arguments{"ttl": with["ttl"]}).into(&req); err != nil {
				return nil, err
			}
			u, err := r.client.PortURL(r.ctx, id(of), with.whole("port", 0), req)
			return u.URL, err
		}},
		"sandbox.connect_port": {"Client.DialPort", func(r *runner, of *Object, with arguments) (any, error) {
			conn, err := r.client.DialPort(r.ctx, id(of), with.whole("port", 0))
			return &Object{Kind: "connection", handle: conn}, err
		}},
		"connection.write": {"PortConn.Write", onConn(func(conn client.PortConn, with arguments) (any, error) {
			return conn.Write(data(with["data"]))
		})},
		"connection.close_write": {"PortConn.CloseWrite", onConn(func(conn client.PortConn, _ arguments) (any, error) {
			return nil, conn.CloseWrite()
		})},
		"connection.read_all": {"PortConn.Read", onConn(func(conn client.PortConn, _ arguments) (any, error) {
			return io.ReadAll(conn)
		})},
		"connection.close": {"PortConn.Close", onConn(func(conn client.PortConn, _ arguments) (any, error) {
			return nil, conn.Close()
		})},
		"sandbox.network.get": {"Client.Network", func(r *runner, of *Object, _ arguments) (any, error) {
			return fieldsAnd(r.client.Network(r.ctx, id(of)))
		}},
		"sandbox.network.set": {"Client.SetNetwork", func(r *runner, of *Object, with arguments) (any, error) {
			var n client.Network
			if err := with.into(&n); err != nil {
				return nil, err
			}
			return fieldsAnd(r.client.SetNetwork(r.ctx, id(of), n))
		}},
		"sandbox.limits.get": {"Client.Limits", func(r *runner, of *Object, _ arguments) (any, error) {
			return fieldsAnd(r.client.Limits(r.ctx, id(of)))
		}},
		"sandbox.limits.set": {"Client.SetLimits", func(r *runner, of *Object, with arguments) (any, error) {
			var l client.Limits
			if err := with.into(&l); err != nil {
				return nil, err
			}
			return fieldsAnd(r.client.SetLimits(r.ctx, id(of), l))
		}},
		"sandbox.hooks.get": {"Client.Hooks", func(r *runner, of *Object, _ arguments) (any, error) {
			return fieldsAnd(r.client.Hooks(r.ctx, id(of)))
		}},
		"sandbox.hooks.set": {"Client.SetHooks", func(r *runner, of *Object, with arguments) (any, error) {
			var h client.Hooks
			if err := with.into(&h); err != nil {
				return nil, err
			}
			return fieldsAnd(r.client.SetHooks(r.ctx, id(of), h))
		}},
	}
}

func onConn(f func(client.PortConn, arguments) (any, error)) func(*runner, *Object, arguments) (any, error) {
	return func(_ *runner, of *Object, with arguments) (any, error) {
		conn, ok := of.handle.(client.PortConn)
		if !ok {
			return nil, errors.New("it is no connection")
		}
		return f(conn, with)
	}
}

// readAll returns the content of a stream as text or as bytes, and closes the stream.
func readAll(from io.ReadCloser, text bool) (any, error) {
	defer from.Close()
	p, err := io.ReadAll(from)
	if text {
		return string(p), err
	}
	return p, err
}

// bestOf calls the client's BestOf. Each attempt runs a command, and its score is the number that
// the command prints.
func bestOf(r *runner, of *Object, with arguments) (any, error) {
	commands, _ := with["attempts"].([]any)
	var attempts []client.Attempt[client.ExecResult]
	for _, command := range commands {
		req, err := arguments{"cmd": command}.command()
		if err != nil {
			return nil, err
		}
		attempts = append(attempts, func(ctx context.Context, child client.Sandbox) (client.ExecResult, error) {
			return client.Checked(r.client.Exec(ctx, child.ID, req))
		})
	}
	judge := func(_ context.Context, _ client.Sandbox, result client.ExecResult) (float64, error) {
		return strconv.ParseFloat(strings.TrimSpace(result.Stdout), 64)
	}
	best, err := client.BestOf(r.ctx, r.client, id(of), attempts, judge, client.ForkRequest{})
	if err != nil {
		return nil, err
	}
	result, err := fieldsOf(best.Result)
	return map[string]any{"index": best.Index, "score": best.Score, "result": result,
		"sandbox": at(sandboxObjects([]client.Sandbox{best.Sandbox}), "0")}, err
}

func diff(r *runner, of *Object, with arguments) (any, error) {
	var req client.DiffRequest
	if err := with.into(&req); err != nil {
		return nil, err
	}
	req.From, req.To = with.text("since"), id(of)
	return fieldsAnd(r.client.Diff(r.ctx, req))
}

func apply(r *runner, of *Object, with arguments) (any, error) {
	var req client.ApplyRequest
	if err := with.into(&req); err != nil {
		return nil, err
	}
	req.From = with.text("source")
	return fieldsAnd(r.client.Apply(r.ctx, id(of), req))
}

func export(r *runner, of *Object, with arguments) (any, error) {
	var req client.ExportRequest
	if err := with.into(&req); err != nil {
		return nil, err
	}
	req.From, req.To = with.text("since"), id(of)
	archive, err := r.client.Export(r.ctx, req)
	if err != nil {
		return nil, err
	}
	return readAll(archive, false)
}
