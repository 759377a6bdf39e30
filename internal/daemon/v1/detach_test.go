package v1_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// If a command is detached from its answer in lines of JSON, the command continues, and the limit
// of an hour no longer applies to it.
func TestDetachFromLines(t *testing.T) {
	cl, _, id := forked(t)
	var out started
	out.pid = make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		_, err := cl.ExecStream(t.Context(), id, client.ExecRequest{Args: []string{"sh", "-c", "echo; exec sleep 3600"},
			TimeoutSecs: 7200}, &out, &out)
		ended <- err
	}()
	select {
	case <-out.pid:
	case err := <-ended:
		t.Fatal(err)
	}
	list, err := cl.Processes(t.Context(), id)
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	pid := list[0].PID
	if err := cl.DetachProcess(t.Context(), id, pid); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, client.ErrDetached) {
		t.Errorf("the stream ends with %v", err)
	}
	list, err = cl.Processes(t.Context(), id)
	if err != nil || !slices.ContainsFunc(list, func(p client.ProcessInfo) bool { return p.PID == pid }) {
		t.Errorf("after it was detached: %+v, %v", list, err)
	}
	if err := cl.DetachProcess(t.Context(), id, pid); !client.IsStatus(err, http.StatusConflict) {
		t.Errorf("once more: %v", err)
	}
	if err := cl.DetachProcess(t.Context(), "sb-none", pid); !client.IsNotFound(err) {
		t.Errorf("in no sandbox: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := cl.SignalProcess(ctx, id, pid, "KILL"); err != nil {
		t.Error(err)
	}
}

// started is a writer that closes its channel at the first output.
type started struct {
	bytes.Buffer
	pid chan struct{}
}

func (s *started) Write(p []byte) (int, error) {
	if s.Len() == 0 {
		close(s.pid)
	}
	return s.Buffer.Write(p)
}
