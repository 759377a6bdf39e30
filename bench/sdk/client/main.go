// Command client is the Go client that bench/sdk measures. Each line of its input is one piece of
// work. For each line, the client prints the time that the work took and its CPU time, in seconds.
// For the line "held N", it prints the memory for each sandbox, in KiB.
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
)

// bench is the client and the sandbox that it uses.
type bench struct {
	*client.Client
	tag, path string
	large     []byte
	box       string
}

func main() {
	c, err := client.Default()
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	b := &bench{Client: c, tag: os.Args[1], path: os.Args[2]}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		work, n := lines.Text(), 0
		_, _ = fmt.Sscanf(lines.Text(), "%s %d", &work, &n)
		if err := b.carryOut(context.Background(), work, n); err != nil {
			log.Fatal(work, ": ", err)
		}
	}
}

// carryOut does one piece of work and prints the result for the program that has asked for it.
func (b *bench) carryOut(ctx context.Context, work string, n int) error {
	switch work { // prepare the work before the clock starts
	case "up":
		b.large = bytes.Repeat([]byte{7}, 100<<20)
	case "held":
		return b.held(ctx, n)
	}
	began, cpu := time.Now(), cpuSeconds()
	if err := b.do(ctx, work, n); err != nil {
		return err
	}
	fmt.Println(time.Since(began).Seconds(), cpuSeconds()-cpu)
	if work == "kill" {
		b.large = nil
		return os.RemoveAll(b.path)
	}
	return nil
}

func (b *bench) do(ctx context.Context, work string, n int) (err error) {
	switch work {
	case "create":
		b.box, err = b.started(ctx)
	case "command":
		err = b.command(ctx, b.box)
	case "code":
		err = b.code(ctx)
	case "up":
		err = b.WriteFile(ctx, b.box, b.path, bytes.NewReader(b.large))
	case "down":
		err = b.down(ctx)
	case "kill":
		err = b.Kill(ctx, b.box)
	case "many":
		_, err = b.many(ctx, n)
	default:
		err = fmt.Errorf("unknown work %q", work)
	}
	return err
}

func (b *bench) started(ctx context.Context) (id string, err error) {
	boxes, err := client.Children(b.Fork(ctx, client.ForkRequest{SnapshotTag: b.tag, N: 1}))
	if err != nil {
		return "", err
	}
	return boxes[0].ID, b.command(ctx, boxes[0].ID)
}

func (b *bench) command(ctx context.Context, id string) error {
	r, err := client.Checked(b.Exec(ctx, id, client.ExecRequest{Args: client.Shell("echo hi")}))
	if err == nil && r.Stdout != "hi\n" {
		err = fmt.Errorf("echo said %q", r.Stdout)
	}
	return err
}

func (b *bench) code(ctx context.Context) error {
	_, err := b.RunCode(ctx, b.box, client.CodeRequest{Code: "1+1"}, client.CodeHandlers{})
	return err
}

func (b *bench) down(ctx context.Context) error {
	file, err := b.ReadFile(ctx, b.box, b.path)
	if err != nil {
		return err
	}
	defer file.Close()
	if n, err := io.Copy(io.Discard, file); err != nil || n != int64(len(b.large)) {
		return fmt.Errorf("%d of %d bytes: %w", n, len(b.large), err)
	}
	return nil
}

// many(ctx, n) forks n sandboxes concurrently and returns their ids.
func (b *bench) many(ctx context.Context, n int) (ids []string, err error) {
	ids = make([]string, n)
	var group errgroup.Group
	for i := range ids {
		group.Go(func() (err error) {
			ids[i], err = b.started(ctx)
			return err
		})
	}
	return ids, group.Wait()
}

// held(ctx, n) prints how much memory of this process a sandbox object takes, as the mean over n
// sandboxes.
func (b *bench) held(ctx context.Context, n int) error {
	first, err := b.many(ctx, 1) // makes the objects that all sandboxes share
	if err != nil {
		return err
	}
	before := residentKiB()
	ids, err := b.many(ctx, n)
	if err != nil {
		return err
	}
	fmt.Println(float64(residentKiB()-before) / float64(n))
	for _, id := range append(ids, first...) {
		if err := b.Kill(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// cpuSeconds returns the CPU time that this process has used.
func cpuSeconds() float64 {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		log.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
}

// residentKiB returns the resident memory of this process (proc(5), VmRSS).
func residentKiB() (kib int64) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		log.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		log.Fatal(err)
	}
	return kib
}
