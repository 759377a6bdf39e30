package metrics

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/sandbox"
)

func TestMetricsAreServed(t *testing.T) {
	m := New("1.2.3")
	m.SetSource(Source{
		Snapshots: func() int { return 3 }, Pool: func() int { return 4 }, PoolWanted: func() int { return 8 },
		Branches:  func() (int, int) { return 1, 4 },
		Sandboxes: func() map[string]int { return map[string]int{"running": 2, "exited": 1} },
	})
	m.ForkDone(sandbox.ForkResult{ForkWall: time.Second}, nil)
	m.ForkDone(sandbox.ForkResult{Failed: 1}, nil)
	m.ForkDone(sandbox.ForkResult{}, errors.New("no"))
	m.ChildReady(sandbox.Timing{Pooled: true})
	m.ConfirmFailed()
	m.SandboxExited("poweroff")
	m.BranchDone(sandbox.BranchResult{Figure: snapshot.Branch{Mode: "live", Faults: 7, Pause: 1_000_000, Stop: 5_000}},
		nil)
	m.BranchDone(sandbox.BranchResult{Figure: snapshot.Branch{Mode: "diff", Fallback: "no device"}}, nil)
	m.BranchDone(sandbox.BranchResult{Figure: snapshot.Branch{Mode: "full"}}, errors.New("no"))
	m.RollbackDone(nil)
	m.WebhookSent(true)
	m.WebhookSent(false)
	m.WebhookLost("overflow")
	m.StreamBegun()
	m.StreamBegun()
	m.StreamEnded("tcp", "cut", time.Second)
	m.PoolRefilled(time.Millisecond)
	m.RequestDone("GET /v1/sandboxes", 200, time.Millisecond)
	m.RequestDone("POST /v1/sandboxes/{id}/exec", 404, time.Millisecond)
	m.RequestDone("", 401, time.Millisecond)
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`forkd_build_info{version="1.2.3"} 1`, "forkd_snapshots_total 3", "forkd_sandboxes_active 2", "forkd_pool_shells 4",
		`forkd_sandboxes{state="exited"} 1`, `forkd_forks_total{result="ok"} 1`, `forkd_forks_total{result="partial"} 1`,
		`forkd_forks_total{result="failed"} 1`, "forkd_confirm_failures_total 1", "forkd_children_total 1",
		`forkd_sandbox_exits_total{reason="poweroff"} 1`, `forkd_child_ready_seconds_count{pool="warm"} 1`,
		"forkd_fork_seconds_count 2", `forkd_branches_total{mode="live",result="ok"} 1`,
		`forkd_branches_total{mode="full",result="failed"} 1`, "forkd_branch_faults_total 7",
		"forkd_branch_fallbacks_total 1",
		"forkd_branch_storms_total 1", `forkd_branch_pause_seconds_count{mode="live"} 1`,
		`forkd_branch_ready_seconds_count{mode="diff"} 1`, `forkd_rollbacks_total{result="ok"} 1`,
		`forkd_webhook_requests_total{result="delivered"} 1`, `forkd_webhook_requests_total{result="failed"} 1`,
		`forkd_webhook_losses_total{reason="overflow"} 1`,
		"forkd_inbound_streams 1", `forkd_inbound_streams_total{kind="tcp",outcome="cut"} 1`,
		`forkd_inbound_stream_seconds_count{kind="tcp"} 1`, "forkd_pool_refill_seconds_count 1", "forkd_pool_wanted_shells 8",
		"forkd_branches_in_flight 1", "forkd_branch_concurrency_cap 4",
		`forkd_requests_total{class="2xx",route="GET /v1/sandboxes"} 1`, `forkd_requests_total{class="4xx",route="none"} 1`,
		`forkd_exec_seconds_count{kind="exec"} 1`, `forkd_request_seconds_count{route="GET /v1/sandboxes"} 1`,
	} {
		if !strings.Contains(rec.Body.String(), want+"\n") {
			t.Errorf("missing %s", want)
		}
	}
}
