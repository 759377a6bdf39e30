package contract

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"github.com/forkd/forkd/client"
)

func codeOperations() map[string]operation {
	return map[string]operation{
		"sandbox.run_code": {"Client.RunCode", runCode},
		"sandbox.contexts.create": {"Client.CreateContext", func(r *runner, of *Object, with arguments) (any, error) {
			return fieldsAnd(r.client.CreateContext(r.ctx, id(of), client.CodeContextRequest{Language: with.text("language"),
				Cwd: with.text("cwd")}))
		}},
		"sandbox.contexts.list": {"Client.Contexts", func(r *runner, of *Object, _ arguments) (any, error) {
			contexts, err := r.client.Contexts(r.ctx, id(of))
			return listOf(contexts), err
		}},
		"sandbox.contexts.restart": {"Client.RestartEval", func(r *runner, of *Object, with arguments) (any, error) {
			return nil, r.client.RestartEval(r.ctx, id(of), with.text("context"))
		}},
		"sandbox.contexts.interrupt": {"Client.InterruptEval", func(r *runner, of *Object, with arguments) (any, error) {
			return r.client.InterruptEval(r.ctx, id(of), with.text("context"))
		}},
		"sandbox.contexts.remove": {"Client.DeleteContext", func(r *runner, of *Object, with arguments) (any, error) {
			return found(r.client.DeleteContext(r.ctx, id(of), with.text("context")), client.ErrNotFoundInSandbox)
		}},
	}
}

// formNames maps the names that scenarios use for forms of a result to media types.
func formNames() map[string]string {
	return map[string]string{"text": "text/plain", "html": "text/html", "markdown": "text/markdown",
		"svg": "image/svg+xml", "png": "image/png",
		"jpeg": "image/jpeg", "pdf": "application/pdf", "latex": "text/latex", "json": "application/json",
		"javascript": "application/javascript",
		"data":       "e2b/data", "chart": "e2b/chart"}
}

func runCode(r *runner, of *Object, with arguments) (any, error) {
	var req client.CodeRequest
	if err := with.into(&req); err != nil {
		return nil, err
	}
	stdout, stderr, shown := "", "", 0
	e, err := r.client.RunCode(r.ctx, id(of), req, client.CodeHandlers{
		Stdout: func(text string) error { stdout += text; return nil },
		Stderr: func(text string) error { stderr += text; return nil },
		Result: func(client.CodeResult) error { shown++; return nil },
	})
	if err != nil {
		return nil, err
	}
	results := []any{}
	for _, result := range e.Results {
		fields := map[string]any{"is_main_result": result.Main}
		for name, media := range formNames() {
			if form, ok := result.Data[media]; ok {
				var value any
				if err := json.Unmarshal(form, &value); err != nil {
					return nil, err
				}
				fields[name] = value
			}
		}
		results = append(results, fields)
	}
	out := map[string]any{"results": results, "stdout": e.Stdout, "stderr": e.Stderr, "execution_count": e.ExecutionCount,
		"outcome":    e.Outcome,
		"state_lost": e.StateLost, "text": nil, "error": nil, "seen": map[string]any{"stdout": stdout, "stderr": stderr,
			"results": shown}}
	if text := e.Text(); text != "" {
		out["text"] = text
	}
	if e.Exception != nil {
		out["error"], err = fieldsOf(e.Exception)
	}
	return out, err
}

// process is the handle of a command, with its output so far.
type process struct {
	*client.Process
	stdout, stderr bytes.Buffer
	end            client.ExecEnd
	err            error
	done           chan struct{}
}

// followed returns the handle of a command that was just started, and collects its output.
func followed(p *client.Process, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	h := &process{Process: p, done: make(chan struct{})}
	go func() {
		defer close(h.done)
		h.end, h.err = p.Wait(&h.stdout, &h.stderr)
	}()
	return &Object{Kind: "command", Fields: map[string]any{"pid": p.PID}, handle: h}, nil
}

// commandResult returns the end of a command in the form that scenarios compare.
func commandResult(end client.ExecEnd, stdout, stderr []byte, truncated bool) (any, error) {
	fields, err := fieldsOf(end)
	if err != nil {
		return nil, err
	}
	fields["stdout"], fields["stderr"] = string(stdout), string(stderr)
	fields["stdout_bytes"], fields["stderr_bytes"] = append([]byte{}, stdout...), append([]byte{}, stderr...)
	fields["truncated"], fields["ok"] = truncated, end.ExitCode == 0 && end.Error == ""
	return fields, nil
}

func commandOperations() map[string]operation {
	return map[string]operation{
		"sandbox.commands.run": {"Client.Exec, Client.ExecStream", runCommand},
		"sandbox.commands.start": {"Client.StartExec", func(r *runner, of *Object, with arguments) (any, error) {
			return r.start(of, with, nil)
		}},
		"sandbox.pty.create": {"Client.StartExec", func(r *runner, of *Object, with arguments) (any, error) {
			return r.start(of, with, &client.TTYSize{Cols: uint(with.whole("cols", 0)), Rows: uint(with.whole("rows", 0))})
		}},
		"sandbox.commands.connect": {"Client.Attach", func(r *runner, of *Object, with arguments) (any, error) {
			return followed(r.client.Attach(r.ctx, id(of), uint32(with.whole("pid", 0))))
		}},
		"sandbox.commands.list": {"Client.Processes", func(r *runner, of *Object, _ arguments) (any, error) {
			processes, err := r.client.Processes(r.ctx, id(of))
			return listOf(processes), err
		}},
		"sandbox.commands.signal": {"Client.SignalProcess", func(r *runner, of *Object, with arguments) (any, error) {
			return nil, r.client.SignalProcess(r.ctx, id(of), uint32(with.whole("pid", 0)), with.text("name"))
		}},
		"sandbox.commands.kill": {"Client.SignalProcess", func(r *runner, of *Object, with arguments) (any, error) {
			return found(r.client.SignalProcess(r.ctx, id(of), uint32(with.whole("pid", 0)), "SIGKILL"),
				client.ErrNotFoundInSandbox)
		}},
		"sandbox.commands.send_stdin": {"Client.SendStdin", func(r *runner, of *Object, with arguments) (any, error) {
			return nil, r.client.SendStdin(r.ctx, id(of), uint32(with.whole("pid", 0)), bytes.NewReader(data(with["data"])),
				with.flag("close"))
		}},
		"command.wait": {"Process.Wait", onProcess(func(p *process, _ arguments) (any, error) {
			<-p.done
			if p.err != nil {
				return nil, p.err
			}
			return commandResult(p.end, p.stdout.Bytes(), p.stderr.Bytes(), false)
		})},
		"command.write": {"Process.Write", onProcess(func(p *process, with arguments) (any, error) {
			return p.Write(data(with["data"]))
		})},
		"command.close_stdin": {"Process.CloseStdin", onProcess(func(p *process, _ arguments) (any, error) {
			return nil, p.CloseStdin()
		})},
		"command.signal": {"Process.Signal", onProcess(func(p *process, with arguments) (any, error) {
			return nil, p.Signal(with.text("name"))
		})},
		"command.kill": {"Process.Signal", onProcess(func(p *process, _ arguments) (any, error) {
			return nil, p.Signal("SIGKILL")
		})},
		"command.resize": {"Process.Resize", onProcess(func(p *process, with arguments) (any, error) {
			return nil, p.Resize(client.TTYSize{Cols: uint(with.whole("cols", 0)), Rows: uint(with.whole("rows", 0))})
		})},
		"command.detach": {"Process.Detach", onProcess(func(p *process, _ arguments) (any, error) {
			err := p.Detach()
			if <-p.done; err == nil && !errors.Is(p.err, client.ErrDetached) {
				err = p.err
			}
			return nil, err
		})},
	}
}

func onProcess(f func(*process, arguments) (any, error)) func(*runner, *Object, arguments) (any, error) {
	return func(_ *runner, of *Object, with arguments) (any, error) {
		p, ok := of.handle.(*process)
		if !ok {
			return nil, errors.New("it is no command")
		}
		return f(p, with)
	}
}

// start starts a command. The command's input ends at once unless the arguments keep it open.
func (r *runner) start(of *Object, with arguments, tty *client.TTYSize) (any, error) {
	req, err := with.command()
	if err != nil {
		return nil, err
	}
	req.TTY = tty
	return followed(r.client.StartExec(r.ctx, id(of), req))
}

func runCommand(r *runner, of *Object, with arguments) (any, error) {
	req, err := with.command()
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	if with.flag("check") {
		result, err := client.Checked(r.client.Exec(r.ctx, id(of), req))
		if err != nil {
			return nil, err
		}
		return commandResult(result.ExecEnd, []byte(result.Stdout), []byte(result.Stderr), result.StdoutTruncated ||
			result.StderrTruncated)
	}
	end, err := r.client.ExecStream(r.ctx, id(of), req, &stdout, &stderr)
	if err != nil {
		return nil, err
	}
	fields, err := commandResult(end, stdout.Bytes(), stderr.Bytes(), false)
	if err == nil {
		fields.(map[string]any)["seen"] = map[string]any{"stdout": stdout.String(), "stderr": stderr.String()}
	}
	return fields, err
}

func fileOperations() map[string]operation {
	return map[string]operation{
		"sandbox.files.read": {"Client.ReadFile", onFile(func(r *runner, box, path string, with arguments) (any,
			error) {
			return r.read(with, box, path, true)
		})},
		"sandbox.files.read_bytes": {"Client.ReadFile", onFile(func(r *runner, box, path string, with arguments) (any,
			error) {
			return r.read(with, box, path, false)
		})},
		"sandbox.files.write": {"Client.WriteFile", onFile(func(r *runner, box, path string, with arguments) (any, error) {
			return nil, r.files(with).WriteFile(r.ctx, box, path, bytes.NewReader(data(with["data"])))
		})},
		"sandbox.files.list": {"Client.ListFiles", onFile(func(r *runner, box, path string, with arguments) (any, error) {
			files, err := r.files(with).ListFiles(r.ctx, box, path, with.whole("depth", 1))
			return listOf(files), err
		})},
		"sandbox.files.stat": {"Client.StatFile", onFile(func(r *runner, box, path string, with arguments) (any, error) {
			return fieldsAnd(r.files(with).StatFile(r.ctx, box, path))
		})},
		"sandbox.files.exists": {"Client.StatFile", onFile(func(r *runner, box, path string, with arguments) (any, error) {
			_, err := r.files(with).StatFile(r.ctx, box, path)
			return found(err, client.ErrNotFoundInSandbox)
		})},
		"sandbox.files.make_dir": {"Client.MakeDir", onFile(func(r *runner, box, path string, with arguments) (any, error) {
			_, err := r.files(with).MakeDir(r.ctx, box, path)
			return found(err, client.ErrConflict)
		})},
		"sandbox.files.rename": {"Client.MoveFile", func(r *runner, of *Object, with arguments) (any, error) {
			return fieldsAnd(r.files(with).MoveFile(r.ctx, id(of), with.text("old"), with.text("new")))
		}},
		"sandbox.files.remove": {"Client.RemoveFile", onFile(func(r *runner, box, path string, with arguments) (any, error) {
			return nil, r.files(with).RemoveFile(r.ctx, box, path)
		})},
		"sandbox.files.watch": {"Client.WatchFiles", onFile(watch)},
		"watch.next":          {"the callback of Client.WatchFiles", nextEvent},
		"watch.close":         {"the end of the context of Client.WatchFiles", endEvents},
		"sandbox.files.read_tree": {"Client.ReadTree", onFile(func(r *runner, box, path string, with arguments) (any, error) {
			tree, err := r.files(with).ReadTree(r.ctx, box, path)
			if err != nil {
				return nil, err
			}
			return readAll(tree, false)
		})},
		"sandbox.files.write_tree": {"Client.WriteTree", onFile(func(r *runner, box, path string, with arguments) (any,
			error) {
			return nil, r.files(with).WriteTree(r.ctx, box, path, bytes.NewReader(data(with["source"])))
		})},
	}
}

// files returns the client for a call on files. The call may name a user.
func (r *runner) files(with arguments) *client.Client { return r.client.AsUser(with.text("user")) }

func onFile(f func(r *runner, box, path string, with arguments) (any, error)) func(*runner, *Object, arguments) (any,
	error) {
	return func(r *runner, of *Object, with arguments) (any, error) { return f(r, id(of), with.text("path"), with) }
}

func (r *runner) read(with arguments, box, path string, text bool) (any, error) {
	file, err := r.files(with).ReadFile(r.ctx, box, path)
	if err != nil {
		return nil, err
	}
	return readAll(file, text)
}

// watch starts to watch a directory, and returns when the watch has begun.
func watch(r *runner, box, path string, with arguments) (any, error) {
	ctx, cancel := context.WithCancel(r.ctx)
	r.undo = append(r.undo, cancel)
	f := newFeed()
	go func() {
		f.ended <- r.files(with).WatchFiles(ctx, box, path, with.flag("recursive"), func(change client.FileChange) error {
			return f.take(change)
		})
	}()
	if _, err := f.next(arguments{"type": "begun"}); err != nil {
		cancel()
		return nil, err
	}
	return &Object{Kind: "watch", handle: following{f, cancel}}, nil
}

func snapshotOperations() map[string]operation {
	snapshot := func(s client.Snapshot, err error) (any, error) {
		if err != nil {
			return nil, err
		}
		return object("snapshot", s, s.Tag)
	}
	workspace := func(w client.Workspace, err error) (any, error) {
		if err != nil {
			return nil, err
		}
		return object("workspace", w, w.Name)
	}
	return map[string]operation{
		"snapshots.list": {"Client.Snapshots", func(r *runner, of *Object, _ arguments) (any, error) {
			snapshots, err := r.on(of).Snapshots(r.ctx)
			return listOf(snapshots), err
		}},
		"snapshots.get": {"Client.Snapshot", func(r *runner, of *Object, with arguments) (any, error) {
			d, err := r.on(of).Snapshot(r.ctx, with.text("tag"))
			return snapshot(d.Snapshot, err)
		}},
		"snapshots.info": {"Client.Snapshot", func(r *runner, of *Object, with arguments) (any, error) {
			return fieldsAnd(r.on(of).Snapshot(r.ctx, with.text("tag")))
		}},
		"snapshots.delete": {"Client.DeleteSnapshot", func(r *runner, of *Object, with arguments) (any, error) {
			err := r.on(of).DeleteSnapshot(r.ctx, with.text("tag"), client.DeleteOptions{Cascade: with.flag("cascade"),
				Force: with.flag("force")})
			return found(err, client.ErrSnapshotNotFound)
		}},
		"snapshots.verify": {"Client.VerifySnapshot", func(r *runner, of *Object, with arguments) (any, error) {
			err := r.on(of).VerifySnapshot(r.ctx, with.text("tag"))
			return map[string]any{"ok": err == nil}, err
		}},
		"snapshots.compact": {"Client.CompactSnapshot", func(r *runner, of *Object, with arguments) (any, error) {
			return snapshot(r.on(of).CompactSnapshot(r.ctx, with.text("tag"), with.text("to")))
		}},
		"snapshots.bake": {"Client.Bake", func(r *runner, of *Object, with arguments) (any, error) {
			var req client.BakeRequest
			if memory, ok := with["memory_mib"]; ok {
				with["mem_size_mib"] = memory
			}
			if err := with.into(&req); err != nil {
				return nil, err
			}
			baked, err := r.on(of).Bake(r.ctx, req)
			return snapshot(baked.Snapshot, err)
		}},
		"snapshot.fork": {"Client.Fork", func(r *runner, of *Object, with arguments) (any, error) {
			with["snapshot"] = of.Fields["tag"]
			return fork(r, of, with)
		}},
		"workspaces.create": {"Client.CreateWorkspace", func(r *runner, of *Object, with arguments) (any, error) {
			var req client.WorkspaceRequest
			if err := with.into(&req); err != nil {
				return nil, err
			}
			return workspace(r.on(of).CreateWorkspace(r.ctx, req))
		}},
		"workspaces.list": {"Client.Workspaces", func(r *runner, of *Object, _ arguments) (any, error) {
			workspaces, err := r.on(of).Workspaces(r.ctx)
			return listOf(workspaces), err
		}},
		"workspaces.get": {"Client.Workspace", func(r *runner, of *Object, with arguments) (any, error) {
			return workspace(r.on(of).Workspace(r.ctx, with.text("name")))
		}},
		"workspaces.suspend": {"Client.SuspendWorkspace", func(r *runner, of *Object, with arguments) (any, error) {
			return workspace(r.on(of).SuspendWorkspace(r.ctx, with.text("name")))
		}},
		"workspaces.resume": {"Client.ResumeWorkspace", func(r *runner, of *Object, with arguments) (any, error) {
			return workspace(r.on(of).ResumeWorkspace(r.ctx, with.text("name")))
		}},
		"workspaces.delete": {"Client.DeleteWorkspace", func(r *runner, of *Object, with arguments) (any, error) {
			return found(r.on(of).DeleteWorkspace(r.ctx, with.text("name")), client.ErrWorkspaceNotFound)
		}},
	}
}

// listOf returns a list of messages in the form that scenarios compare.
func listOf[T any](list []T) []any {
	out := []any{}
	for _, v := range list {
		fields, err := fieldsOf(v)
		if err != nil {
			return nil // messages of the API can always be encoded
		}
		out = append(out, fields)
	}
	return out
}
