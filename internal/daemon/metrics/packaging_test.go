package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"gopkg.in/yaml.v3"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// everything returns the metrics, by name, of a daemon in which every event has occurred once.
func everything(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	m := New("test")
	m.SetSource(Source{
		Snapshots: func() int { return 1 }, Pool: func() int { return 1 }, PoolWanted: func() int { return 1 },
		Branches:  func() (int, int) { return 1, 4 },
		Sandboxes: func() map[string]int { return map[string]int{"running": 1} },
		Net: func() (Net, bool) {
			return Net{Totals: netproto.Stats{Refused: []netproto.Refusals{{Reason: "policy", Count: 1}}}}, true
		},
		Usage: func() (cgroup.Usage, bool) { return cgroup.Usage{}, true },
	})
	m.ForkDone(sandbox.ForkResult{}, nil)
	m.ChildReady(sandbox.Timing{})
	m.ConfirmFailed()
	m.SandboxExited("poweroff")
	m.Refused("host_memory")
	m.BranchDone(sandbox.BranchResult{Figure: snapshot.Branch{Mode: "live"}}, nil)
	m.RollbackDone(nil)
	m.StreamBegun()
	m.StreamEnded("tcp", "ok", time.Second)
	m.PoolRefilled(time.Second)
	m.RequestDone("POST /v1/sandboxes/{id}/exec", 200, time.Second)
	list, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	families := make(map[string]*dto.MetricFamily)
	for _, f := range list {
		families[f.GetName()] = f
	}
	return families
}

// foreign reports whether Prometheus adds the label with the given name.
func foreign(name string) bool { return slices.Contains([]string{"__name__", "instance", "job"}, name) }

// check reports an error if a PromQL expression uses metrics or labels that the daemon does not
// have.
func check(t *testing.T, where, expr string, families map[string]*dto.MetricFamily) (selectors int) {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return 0
	}
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		selectors++
		if v.Name == "up" {
			return nil
		}
		name := v.Name
		f := families[name]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			base, cut := strings.CutSuffix(name, suffix)
			if h := families[base]; f == nil && cut && h != nil && h.GetType() == dto.MetricType_HISTOGRAM {
				f = h
			}
		}
		if f == nil {
			t.Errorf("%s: the daemon has no metric %q", where, name)
			return nil
		}
		for _, m := range v.LabelMatchers {
			if !foreign(m.Name) && !hasLabel(f, m) {
				t.Errorf("%s: %s has no label %q", where, name, m.Name)
			}
		}
		return nil
	})
	return selectors
}

func hasLabel(f *dto.MetricFamily, m *labels.Matcher) bool {
	return slices.ContainsFunc(f.GetMetric()[0].GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == m.Name })
}

// The dashboard and the alert rules use only metrics that the daemon has. Each alert has a section
// in the runbook.
func TestDashboardAndAlertsNameWhatThereIs(t *testing.T) {
	families := everything(t)
	p, err := os.ReadFile("../../../packaging/grafana/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(p, &board); err != nil {
		t.Fatal(err)
	}
	selectors := 0
	variables := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*")
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			selectors += check(t, "dashboard, "+panel.Title, variables.Replace(target.Expr), families)
		}
	}
	if selectors < 30 {
		t.Errorf("the dashboard asks for %d series: there were more", selectors)
	}
	if p, err = os.ReadFile("../../../packaging/grafana/alerts.yaml"); err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string            `yaml:"alert"`
				Expr        string            `yaml:"expr"`
				Annotations map[string]string `yaml:"annotations"`
			} `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal(p, &rules); err != nil {
		t.Fatal(err)
	}
	runbook, err := os.ReadFile("../../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			seen++
			if check(t, r.Alert, r.Expr, families) == 0 {
				t.Errorf("%s asks for no series", r.Alert)
			}
			if r.Annotations["runbook"] != "docs/runbook.md#"+strings.ToLower(r.Alert) ||
				!strings.Contains(string(runbook), "\n### "+r.Alert+"\n") {
				t.Errorf("%s has no section of its own in docs/runbook.md", r.Alert)
			}
		}
	}
	if seen < 10 {
		t.Errorf("there are %d alerts: there were more", seen)
	}
}

// The metrics of forkd 0.5 still exist, and every name follows the conventions of Prometheus.
func TestNamesOfMetrics(t *testing.T) {
	families := everything(t)
	for _, name := range []string{"forkd_snapshots_total", "forkd_sandboxes_active", "forkd_branches_in_flight",
		"forkd_branch_concurrency_cap",
		"forkd_build_info"} {
		if f := families[name]; f == nil || f.GetType() != dto.MetricType_GAUGE {
			t.Errorf("%s is missing or no gauge", name)
		}
	}
	form := regexp.MustCompile(`^(forkd|go|process|promhttp)_[a-z0-9_]+$`)
	for name, f := range families {
		if !form.MatchString(name) || f.GetHelp() == "" || strings.HasPrefix(name, "forkd_") &&
			f.GetType() == dto.MetricType_COUNTER && !strings.HasSuffix(name, "_total") {
			t.Errorf("%s: %s, %q", name, f.GetType(), f.GetHelp())
		}
	}
}
