package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/forkd/forkd/client"
)

// connect returns a client of the daemon and the tag of a snapshot there.
func connect() (*client.Client, string) {
	c, err := client.New(os.Getenv(urlEnv), os.Getenv(tokenEnv), client.WithRetries(2))
	if err != nil {
		log.Fatal(err)
	}
	return c, os.Getenv(snapshotEnv)
}

func Example() {
	c, snapshot := connect()
	defer c.Close()
	ctx := context.Background()
	boxes, err := client.Children(c.Fork(ctx, client.ForkRequest{SnapshotTag: snapshot, N: 2}))
	if err != nil {
		log.Fatal(err)
	}
	for i, box := range boxes {
		defer c.Kill(ctx, box.ID)
		r, err := c.Exec(ctx, box.ID, client.ExecRequest{Args: client.Shell("echo $((N * 2))"),
			Env: map[string]string{"N": strconv.Itoa(i + 1)}})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(r.Stdout)
	}
	// Output:
	// 2
	// 4
}

func ExampleClient_RunCode() {
	c, snapshot := connect()
	defer c.Close()
	ctx := context.Background()
	f, err := c.Fork(ctx, client.ForkRequest{SnapshotTag: snapshot, N: 1})
	if err != nil {
		log.Fatal(err)
	}
	box := f.Sandboxes[0].ID
	defer c.Kill(ctx, box)
	on := client.CodeHandlers{Stdout: func(text string) error { fmt.Print("while it runs: ", text); return nil }}
	run, err := c.RunCode(ctx, box, client.CodeRequest{Code: "x = 41\nprint('hello')\nx + 1"}, on)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(run.Text(), run.Outcome)
	run, err = c.RunCode(ctx, box, client.CodeRequest{Code: "x / 0"}, client.CodeHandlers{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(run.Exception.Name, run.Outcome)
	// Output:
	// while it runs: hello
	// 42 finished
	// ZeroDivisionError exception
}

func ExampleClient_Build() {
	c, snapshot := connect()
	defer c.Close()
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "app")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	text := "FROM " + snapshot + "\nARG WHO\nRUN echo hello, $WHO\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(text), 0o644); err != nil {
		log.Fatal(err)
	}
	files, err := client.OpenBuildContext(dir, "")
	if err != nil {
		log.Fatal(err)
	}
	defer files.Close()
	req := client.BuildRequest{Tag: "hello", Name: files.Name, Dockerfile: files.Dockerfile, Replace: true,
		Args: map[string]string{"WHO": "world"}}
	made, err := c.Build(ctx, req, files.Pack, func(e client.BuildEvent) error {
		if e.Output != nil {
			fmt.Println(e.Output.Line)
		}
		return nil
	})
	var failed *client.BuildError
	if errors.As(err, &failed) {
		log.Fatalf("%s: %s", failed.Step, failed.Output)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(made.Tag, "is there")
	// Output:
	// hello, world
	// hello is there
}

func ExampleClient_Rollback() {
	c, snapshot := connect()
	defer c.Close()
	ctx := context.Background()
	f, err := c.Fork(ctx, client.ForkRequest{SnapshotTag: snapshot, N: 1})
	if err != nil {
		log.Fatal(err)
	}
	box := f.Sandboxes[0].ID
	defer c.Kill(ctx, box)
	before, err := c.Branch(ctx, box, client.BranchRequest{Tag: "before-the-upgrade"})
	if err != nil {
		log.Fatal(err)
	}
	// … the sandbox goes on, and breaks something …
	back, err := c.Rollback(ctx, box, before.Tag)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(back.State, back.RolledBackTo)
	// Output: running before-the-upgrade
}

func ExampleBestOf() {
	c, snapshot := connect()
	defer c.Close()
	ctx := context.Background()
	f, err := c.Fork(ctx, client.ForkRequest{SnapshotTag: snapshot, N: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Kill(ctx, f.Sandboxes[0].ID)
	var attempts []client.Attempt[client.ExecResult]
	for _, line := range []string{"echo 7", "exit 1", "echo 9", "echo 8"} {
		attempts = append(attempts, func(ctx context.Context, child client.Sandbox) (client.ExecResult, error) {
			return client.Checked(c.Exec(ctx, child.ID, client.ExecRequest{Args: client.Shell(line)}))
		})
	}
	judge := func(_ context.Context, _ client.Sandbox, r client.ExecResult) (float64, error) {
		return strconv.ParseFloat(strings.TrimSpace(r.Stdout), 64)
	}
	best, err := client.BestOf(ctx, c, f.Sandboxes[0].ID, attempts, judge, client.ForkRequest{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Kill(ctx, best.Sandbox.ID)
	fmt.Println(best.Index, best.Score)
	// Output: 2 9
}

func ExampleError() {
	c, _ := connect()
	defer c.Close()
	_, err := c.Sandbox(context.Background(), "sb-none")
	fmt.Println(errors.Is(err, client.ErrSandboxNotFound))
	var e *client.Error
	if errors.As(err, &e) {
		fmt.Println(e.Status, e.Fix)
	}
	// Output:
	// true
	// 404 list sandboxes with GET /v1/sandboxes (forkd ls)
}

func ExampleArgumentError() {
	c, snapshot := connect()
	defer c.Close()
	_, err := c.Fork(context.Background(), client.ForkRequest{SnapshotTag: snapshot, N: 1001})
	var wrong *client.ArgumentError
	fmt.Println(errors.As(err, &wrong), err)
	// Output: true n: 1001: want 1 to 1000
}

func ExampleChecked() {
	c, snapshot := connect()
	defer c.Close()
	ctx := context.Background()
	f, err := c.Fork(ctx, client.ForkRequest{SnapshotTag: snapshot, N: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Kill(ctx, f.Sandboxes[0].ID)
	_, err = client.Checked(c.Exec(ctx, f.Sandboxes[0].ID,
		client.ExecRequest{Args: client.Shell("echo no such port >&2; exit 7")}))
	fmt.Println(err)
	// Output: the command failed: exit code 7: no such port
}

func ExampleClient_StartExec() {
	c, snapshot := connect()
	defer c.Close()
	ctx := context.Background()
	f, err := c.Fork(ctx, client.ForkRequest{SnapshotTag: snapshot, N: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Kill(ctx, f.Sandboxes[0].ID)
	p, err := c.StartExec(ctx, f.Sandboxes[0].ID, client.ExecRequest{Args: []string{"tr", "a-z", "A-Z"}, OpenStdin: true})
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		defer p.CloseStdin()
		fmt.Fprintln(p, "louder")
	}()
	end, err := p.Wait(os.Stdout, os.Stderr)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(end.Outcome, end.ExitCode)
	// Output:
	// LOUDER
	// exited 0
}
