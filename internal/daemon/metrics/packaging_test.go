package metrics

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	m.Moved("left")
	m.PoolRefilled(time.Second)
	m.RequestDone("POST /v1/sandboxes/{id}/exec", 200, time.Second)
	return gathered(t, m.registry)
}

// everythingRouted returns the metrics of a router in which every event has occurred once.
func everythingRouted(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	m := NewRouter(func() map[string]bool { return map[string]bool{"a": true} })
	m.RequestDone("a", "2xx")
	m.Placed("a", "hot")
	return gathered(t, m.registry)
}

func gathered(t *testing.T, registry *prometheus.Registry) map[string]*dto.MetricFamily {
	t.Helper()
	list, err := registry.Gather()
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

// ofOperator matches the metrics of the operator, which is another module. Its TestMetrics
// (kube/operator) compares them with those of a running operator.
var ofOperator = regexp.MustCompile(`^(controller_runtime|leader_election|rest_client|workqueue)_`)

// check reports an error if a PromQL expression uses metrics or labels that do not exist.
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
		if v.Name == "up" || ofOperator.MatchString(v.Name) {
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
			t.Errorf("%s: there is no metric %q", where, name)
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

// boardSelectors checks a dashboard, and returns the number of its selectors.
func boardSelectors(t *testing.T, name string, families map[string]*dto.MetricFamily) (selectors int) {
	t.Helper()
	p, err := os.ReadFile("../../../packaging/grafana/" + name)
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
	variables := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*")
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			selectors += check(t, name+", "+panel.Title, variables.Replace(target.Expr), families)
		}
	}
	return selectors
}

// checkRules checks alert rules, and returns their number.
func checkRules(t *testing.T, name, runbook string, families map[string]*dto.MetricFamily) (seen int) {
	t.Helper()
	p, err := os.ReadFile("../../../packaging/grafana/" + name)
	if err != nil {
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
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			seen++
			if check(t, r.Alert, r.Expr, families) == 0 {
				t.Errorf("%s asks for no series", r.Alert)
			}
			if r.Annotations["runbook"] != "docs/runbook.md#"+strings.ToLower(r.Alert) ||
				!strings.Contains(runbook, "\n### "+r.Alert+"\n") {
				t.Errorf("%s has no section of its own in docs/runbook.md", r.Alert)
			}
		}
	}
	return seen
}

// The dashboards and the alert rules use only metrics that exist. Each alert has a section in the
// runbook.
func TestDashboardsAndAlertsNameWhatThereIs(t *testing.T) {
	runbook, err := os.ReadFile("../../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	ofDaemon := everything(t)
	ofCluster := everything(t)
	maps.Copy(ofCluster, everythingRouted(t))
	for _, of := range []struct {
		board, rules               string
		families                   map[string]*dto.MetricFamily
		leastSelectors, leastRules int
	}{
		{"dashboard.json", "alerts.yaml", ofDaemon, 30, 10},
		{"cluster-dashboard.json", "cluster-alerts.yaml", ofCluster, 15, 8},
	} {
		if n := boardSelectors(t, of.board, of.families); n < of.leastSelectors {
			t.Errorf("%s asks for %d series: there were more", of.board, n)
		}
		if n := checkRules(t, of.rules, string(runbook), of.families); n < of.leastRules {
			t.Errorf("%s has %d alerts: there were more", of.rules, n)
		}
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
