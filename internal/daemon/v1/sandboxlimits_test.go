package v1_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/invalid"
)

func TestLimitsOverTheAPI(t *testing.T) {
	r := start(t, apirig.Options{})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	fork := func(req client.ForkRequest) (client.Sandbox, error) {
		req.SnapshotTag, req.N = r.Parent.Tag, 1
		f, err := r.Fork(t.Context(), req)
		if err != nil {
			return client.Sandbox{}, err
		}
		return f.Sandboxes[0], nil
	}
	s, err := fork(client.ForkRequest{})
	if err != nil || s.LimitEnforced || s.Limits != (client.Limits{}) {
		t.Errorf("without limits: %+v, %v", s, err)
	}
	// MemoryLimitMiB is the field of forkd 0.5.
	s, err = fork(client.ForkRequest{MemoryLimitMiB: 64, Limits: &client.Limits{CPUs: 1.5}})
	if want := (client.Limits{MemoryMiB: 64, CPUs: 1.5}); err != nil || s.Limits != want || s.MemoryLimitMiB != 64 ||
		!s.LimitEnforced {
		t.Errorf("%+v, %v", s, err)
	}
	l, err := r.SetLimits(t.Context(), s.ID, client.Limits{MemoryMiB: 128, IOOpsPerSecond: 500})
	if want := (client.Limits{MemoryMiB: 128, IOOpsPerSecond: 500}); err != nil || l.Limits != want ||
		l.Usage.OwnMemoryBytes != 48<<20 {
		t.Errorf("%+v, %v", l, err)
	}
	if again, err := r.Limits(t.Context(), s.ID); err != nil || again != l {
		t.Errorf("%+v, %v", again, err)
	}
	wrong := func(field string, err error) {
		t.Helper()
		if !client.IsStatus(err, http.StatusBadRequest) || !strings.HasPrefix(err.Error(), field+": ") {
			t.Errorf("got %v, want an error about %s", err, field)
		}
	}
	_, err = fork(client.ForkRequest{MemoryLimitMiB: 64, Limits: &client.Limits{MemoryMiB: 65}})
	wrong("memory_limit_mib", err)
	_, err = r.SetLimits(t.Context(), s.ID, client.Limits{MemoryMiB: 40})
	wrong("memory_mib", err)
	r.VMs.LimitErr = &invalid.Error{Field: "limits.memory_mib", Reason: "no cgroups"}
	_, err = fork(client.ForkRequest{MemoryLimitMiB: 64})
	wrong("limits.memory_mib", err)
	if _, err = r.Limits(t.Context(), "sb-nobody"); !client.IsNotFound(err) {
		t.Error(err)
	}
}

func TestRefusalsOverTheAPI(t *testing.T) {
	r := start(t, apirig.Options{Admit: admit.Rules{MaxSandboxes: 1}})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	_, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 2})
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Status != http.StatusTooManyRequests || refused.Code != "max_sandboxes" {
		t.Errorf("%v", err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL+"/v1/forks",
		strings.NewReader(`{"snapshot_tag": "a.b", "n": 3}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+apirig.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.Header.Get("Retry-After") == "" || !strings.Contains(string(body), `"code":"max_sandboxes"`) {
		t.Errorf("%v: %s", resp.Header, body)
	}
	if m, err := r.Fork(t.Context(), client.ForkRequest{SnapshotTag: r.Parent.Tag, N: 1}); err != nil ||
		len(m.Sandboxes) != 1 {
		t.Errorf("the one that is admitted: %v", err)
	}
}
