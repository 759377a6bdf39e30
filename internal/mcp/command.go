package mcp

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/client"
)

// commandTools returns the tools for commands that run for longer than a client waits for an
// answer. The state of such a command is in the sandbox. So copies of the sandbox also have the
// state, and any server can continue to wait.
func commandTools() []tool {
	return []tool{
		define(
			"start_command",
			"Start a shell command in the background, such as a server, a build or a test suite, and return its pid at once. "+
				"Its output goes to files in the sandbox. Copies of the sandbox have the running command too, under the same pid.",
			Run,
			destructive|openWorld,
			startCommand,
			between("timeout_secs", 0, 30*24*3600, 0),
		),
		define(
			"wait_command",
			"Wait until a command from start_command ends, or until timeout_secs have passed. Return its exit code and the end of its output. "+
				"May be called repeatedly; with timeout_secs 0 it does not wait.",
			Run,
			readOnly,
			waitCommand,
			between("timeout_secs", 0, 3600, 50),
		),
		define(
			"signal_command",
			"Send a signal to a command from start_command and to its process group.",
			Run,
			destructive,
			signalCommand,
			oneOf("signal", "SIGTERM", "SIGINT", "SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT"),
		),
	}
}

type startArgs struct {
	SandboxID   string            `json:"sandbox_id"`
	Command     string            `json:"command" jsonschema:"for /bin/sh"`
	Cwd         string            `json:"cwd,omitempty" jsonschema:"working directory"`
	Env         map[string]string `json:"env,omitempty"`
	User        string            `json:"user,omitempty" jsonschema:"user in the sandbox; empty: its default user"`
	TimeoutSecs float64           `json:"timeout_secs,omitempty" jsonschema:"seconds after which the command is killed; 0: never"`
}

type started struct {
	PID        uint32 `json:"pid" jsonschema:"for wait_command and signal_command"`
	StdoutPath string `json:"stdout_path" jsonschema:"file in the sandbox with the command's output"`
	StderrPath string `json:"stderr_path"`
}

// starter is a script that runs the command $1. It writes the outputs and the exit code to a
// directory named after the process id of its shell. It first removes files that an earlier process
// with the same id has left in this directory.
const starter = `d=/tmp/forkd-command-$$
umask 077
rm -rf "$d" && mkdir "$d" || exit 125
/bin/sh -c "$1" >"$d/stdout" 2>"$d/stderr" </dev/null
code=$?
echo "$code" >"$d/exit_code.new" && mv "$d/exit_code.new" "$d/exit_code"
exit "$code"`

func commandFile(pid uint32, name string) string {
	return fmt.Sprintf("/tmp/forkd-command-%d/%s", pid, name)
}

func startCommand(ctx context.Context, c *call, in startArgs) (s started, err error) {
	if in.Command == "" {
		return s, wrong("command", "is empty")
	}
	pid, err := c.ExecDetached(ctx, in.SandboxID, client.ExecRequest{
		Args: []string{
			"/bin/sh",
			"-c",
			starter,
			"sh",
			in.Command,
		}, TimeoutSecs: in.TimeoutSecs, Cwd: in.Cwd, Env: in.Env, User: in.User})
	return started{pid, commandFile(pid, "stdout"), commandFile(pid, "stderr")}, err
}

type waitArgs struct {
	SandboxID   string  `json:"sandbox_id"`
	PID         uint32  `json:"pid" jsonschema:"from start_command"`
	TimeoutSecs float64 `json:"timeout_secs,omitempty" jsonschema:"how long to wait"`
}

type waited struct {
	Running       bool   `json:"running"`
	ExitCode      *int   `json:"exit_code,omitempty" jsonschema:"absent if the command still runs, or was killed"`
	Stdout        string `json:"stdout" jsonschema:"the end of it"`
	Stderr        string `json:"stderr" jsonschema:"the end of it"`
	StdoutBytes   int64  `json:"stdout_bytes" jsonschema:"total length; read_file returns the rest"`
	StderrBytes   int64  `json:"stderr_bytes"`
	StdoutOmitted int64  `json:"stdout_omitted_bytes,omitempty" jsonschema:"bytes omitted from the beginning of stdout"`
	StderrOmitted int64  `json:"stderr_omitted_bytes,omitempty"`
}

// waiter is a script that waits for the command with process id $1, up to $2 times 0.2 s. It prints
// the state of the command, its exit code or "-", and the sizes of its outputs.
const waiter = `d=/tmp/forkd-command-$1 n=$2
while [ ! -e "$d/exit_code" ] && [ -d "/proc/$1" ] && [ "$n" -gt 0 ]; do sleep 0.2; n=$((n - 1)); done
[ -d "/proc/$1" ] && state=running || state=gone
[ -d "$d" ] || { echo "$state - -1 -1"; exit; }
code=-
[ -e "$d/exit_code" ] && { code=$(cat "$d/exit_code"); state=ended; }
echo "$state $code $(($(wc -c <"$d/stdout" || echo 0))) $(($(wc -c <"$d/stderr" || echo 0)))"`

// Bounds on waiting for a command.
const (
	slice      = 5        // longest wait by one request to the sandbox, in seconds
	waitedTail = 16 << 10 // bytes kept from the end of each output
	leastPause = 200 * time.Millisecond
)

func waitCommand(ctx context.Context, c *call, in waitArgs) (w waited, err error) {
	since, told := stopwatch(), time.Now()
	for {
		left := max(0, in.TimeoutSecs-since().Seconds())
		begun := time.Now()
		state, err := c.look(ctx, in, min(left, slice), &w)
		switch {
		case err != nil:
			return w, err
		case w.StdoutBytes < 0 && state == "gone":
			return w, wrong(
				"pid",
				"no command of start_command has the pid %d in this sandbox, or it was killed as it began",
				in.PID,
			)
		case state != "running" || since().Seconds() >= in.TimeoutSecs:
			w.Running = state == "running"
			return w, c.readTails(ctx, in, &w)
		}
		if time.Since(told) >= tick {
			told = time.Now()
			c.progress(
				ctx,
				since().Seconds(),
				in.TimeoutSecs,
				fmt.Sprintf("it runs, and has written %d bytes", max(0, w.StdoutBytes)+max(0, w.StderrBytes)),
			)
		}
		rest := seconds(min(left, slice)) - time.Since(begun) // positive if the guest has answered without waiting
		select {
		case <-ctx.Done():
			return w, ctx.Err()
		case <-time.After(max(rest, leastPause)):
		}
	}
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// look waits for a command for at most the given time and returns the state of the command:
// running, ended or gone. A command that was killed is gone.
func (c *call) look(ctx context.Context, in waitArgs, secs float64, w *waited) (state string, err error) {
	turns := strconv.Itoa(int(secs * 5))
	stdout, stderr, err := c.ends(ctx, in.SandboxID, client.ExecRequest{TimeoutSecs: secs + 30,
		Args: []string{"/bin/sh", "-c", waiter, "sh", strconv.FormatUint(uint64(in.PID), 10), turns}}, maxName)
	if err != nil {
		return "", err
	}
	var code string
	if _, err := fmt.Sscan(string(stdout), &state, &code, &w.StdoutBytes, &w.StderrBytes); err != nil {
		return "", fmt.Errorf(
			"wait for the command %d: the sandbox answered %q %q",
			in.PID,
			plain(stdout),
			plain(stderr),
		)
	}
	if n, err := strconv.Atoi(code); err == nil {
		w.ExitCode = &n
	}
	return state, nil
}

// readTails reads the ends of a command's outputs.
func (c *call) readTails(ctx context.Context, in waitArgs, w *waited) error {
	for _, part := range []struct {
		name           string
		text           *string
		total, omitted *int64
	}{{"stdout", &w.Stdout, &w.StdoutBytes, &w.StdoutOmitted}, {"stderr", &w.Stderr, &w.StderrBytes, &w.StderrOmitted}} {
		if *part.total <= 0 {
			*part.total = 0
			continue
		}
		got, _, err := c.ends(ctx, in.SandboxID, client.ExecRequest{TimeoutSecs: 30,
			Args: []string{"tail", "-c", strconv.Itoa(waitedTail), commandFile(in.PID, part.name)}}, waitedTail)
		if err != nil {
			return err
		}
		*part.text = plain(validStart(got))
		*part.omitted = max(0, *part.total-int64(len(got)))
	}
	return nil
}

type signalArgs struct {
	SandboxID string `json:"sandbox_id"`
	PID       uint32 `json:"pid" jsonschema:"from start_command"`
	Signal    string `json:"signal,omitempty"`
}

type signaled struct {
	PID    uint32 `json:"pid"`
	Signal string `json:"signal"`
}

func signalCommand(ctx context.Context, c *call, in signalArgs) (signaled, error) {
	in.Signal = strings.ToUpper(in.Signal)
	return signaled{in.PID, in.Signal}, c.SignalProcess(ctx, in.SandboxID, in.PID, in.Signal)
}
