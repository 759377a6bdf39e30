package e2b_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/host/admit"
)

// A client with the scope run may name a snapshot "base", like the SDKs' default template. A
// template or Dockerfile of an admin is not built on that snapshot. The client's own templates are
// built on it.
func TestTemplatesOfAdminsDoNotBeginWithBranches(t *testing.T) {
	r := startWith(t, apirig.Options{Tokens: []auth.Token{{Name: "runner", Scope: auth.Run}}})
	as := func(token string) {
		r.key = header{"Authorization": "Bearer " + token, "Content-Type": "application/json"}
	}
	as(r.Tokens["runner"])
	s := r.create(`{"templateID":"a.b"}`)
	resp, text := r.send("POST", "/v1/sandboxes/"+s.ID+"/branch", r.key, `{"tag":"base","mode":"diff"}`)
	if resp.StatusCode/100 != 2 {
		t.Fatalf("branch: %s %s", resp.Status, text)
	}
	const onDefault = `{"fromImage":"e2bdev/base","steps":[]}`
	if end := r.built(r.request("own"), onDefault); end.Status != "ready" {
		t.Errorf("the runner's own template: %s %+v", end.Status, end.Reason)
	}
	as(apirig.Token)
	for _, body := range []string{onDefault, `{"fromTemplate":"base","steps":[]}`, `{"fromTemplate":"own","steps":[]}`} {
		end := r.built(r.request("official"), body)
		if end.Status != "error" || !strings.Contains(end.Reason.Message, "is a branch of a sandbox") {
			t.Errorf("%s: %s %+v", body, end.Status, end.Reason)
		}
	}
	if end := r.built(r.request("first"), `{"fromTemplate":"a.b","steps":[]}`); end.Status != "ready" {
		t.Fatalf("a template on a parent: %s %+v", end.Status, end.Reason)
	}
	if end := r.built(r.request("official"), `{"fromTemplate":"first","steps":[]}`); end.Status != "ready" {
		t.Errorf("a template on an admin's template: %s %+v", end.Status, end.Reason)
	}
	_, err := r.Client.Build(t.Context(), client.BuildRequest{Tag: "more", Dockerfile: "FROM official\n"}, nil,
		func(client.BuildEvent) error { return nil })
	if err != nil {
		t.Errorf("FROM an admin's template: %v", err)
	}
}

// A client without the right to bake cannot make the daemon boot a parent that is larger than the
// sandboxes that the host admits.
func TestParentsOfTemplatesAreAdmitted(t *testing.T) {
	r := startWith(t, apirig.Options{Admit: admit.Rules{VCPUsPerCPU: 1},
		Tokens: []auth.Token{{Name: "runner", Scope: auth.Run, MaxSandboxes: 1}}})
	r.key = header{"Authorization": "Bearer " + r.Tokens["runner"], "Content-Type": "application/json"}
	for _, c := range []struct {
		vcpus  int
		status string
	}{{1, "ready"}, {runtime.NumCPU() + 1, "error"}} {
		var b build
		r.call("POST", "/v3/templates", fmt.Sprintf(`{"name":"mine-%d","cpuCount":%[1]d,"memoryMB":512}`, c.vcpus), 202, &b)
		end := r.built(b, `{"fromTemplate":"a.b","steps":[{"type":"RUN","args":["true"]}]}`)
		if end.Status != c.status || c.status == "error" && !strings.Contains(end.Reason.Message, "--vcpu-overcommit") {
			t.Errorf("with %d vCPUs: %+v", c.vcpus, end)
		}
	}
}
