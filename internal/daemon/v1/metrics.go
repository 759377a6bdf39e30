package v1

import (
	"math"
	"net/http"
	"runtime"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/history"
	"github.com/forkd/forkd/internal/host/invalid"
)

// metrics serves the metrics of the daemon.
func (a *api) metrics(w http.ResponseWriter, r *http.Request) error {
	if err := a.view(r).Limited("metrics of all sandboxes"); err != nil {
		return err
	}
	a.Metrics.ServeHTTP(w, r)
	return nil
}

// sandboxMetrics answers with the history of a sandbox.
func (a *api) sandboxMetrics(r *http.Request) (out apiv1.Metrics, err error) {
	if _, err := a.view(r).Sandbox(r.PathValue("id")); err != nil {
		return out, err
	}
	in, err := rangeQuery(r, time.Now())
	if err != nil {
		return out, err
	}
	out = apiv1.Metrics{BeganAt: unixSeconds(a.History.Began()), StepSecs: stepSecs(in), Points: []apiv1.MetricPoint{}}
	for _, p := range a.History.OfSandbox(r.PathValue("id"), in) {
		f := p.Figures
		out.Points = append(out.Points, apiv1.MetricPoint{At: unixSeconds(p.At), CPUs: rounded(f.CPU),
			MemoryBytes: uint64(f.Memory), OwnBytes: uint64(f.Own), ReadRate: rounded(f.Read), WrittenRate: rounded(f.Written)})
	}
	return out, nil
}

// hostMetrics answers with the history of the host.
func (a *api) hostMetrics(r *http.Request) (out apiv1.HostMetrics, err error) {
	if err := a.view(r).Limited("metrics of the host"); err != nil {
		return out, err
	}
	in, err := rangeQuery(r, time.Now())
	if err != nil {
		return out, err
	}
	out = apiv1.HostMetrics{BeganAt: unixSeconds(a.History.Began()), StepSecs: stepSecs(in), CPUs: runtime.NumCPU(),
		MemoryBytes: bake.HostMemoryMiB() << 20, Points: []apiv1.HostPoint{}}
	for _, p := range a.History.OfHost(in) {
		f := p.Figures
		point := apiv1.HostPoint{At: unixSeconds(p.At), CPUs: rounded(f.CPU), SandboxCPUs: rounded(f.SandboxCPU),
			AvailableBytes: uint64(f.Available), TmpfsBytes: uint64(f.Tmpfs), MemoryBytes: uint64(f.Memory),
			OwnBytes: uint64(f.Own), Sandboxes: int(f.Sandboxes), Running: int(f.Running), PoolShells: int(f.Pool),
			ChildrenRate: rounded(f.Children)}
		if f.Children > 0 {
			point.ReadyMS = rounded(1000 * f.ReadySeconds / f.Children)
		}
		out.Points = append(out.Points, point)
	}
	return out, nil
}

// rounded removes digits that no measurement has.
func rounded(v float64) float64 { return math.Round(1e4*v) / 1e4 }

func unixSeconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func stepSecs(in history.Range) int {
	if in.Minutes {
		return 60
	}
	return 1
}

// clientSlack is added to history.KeptFine for the comparison with the beginning of a range. The
// reason is that a client's clock may be behind, and that the client's request takes some time.
const clientSlack = time.Minute

// rangeQuery returns the range of points that a query requests. If the query has no step,
// rangeQuery chooses it: a second if the history still has a point for each second at the beginning
// of the range, and otherwise a minute.
func rangeQuery(r *http.Request, now time.Time) (in history.Range, err error) {
	if in.From, err = timeQuery(r, "since", now); err != nil {
		return in, err
	}
	if in.To, err = timeQuery(r, "until", now); err != nil {
		return in, err
	}
	if !in.From.IsZero() && !in.To.IsZero() && in.To.Before(in.From) {
		return in, invalid.Errorf("until", "it is before since")
	}
	switch step := r.URL.Query().Get("step"); step {
	case "":
		in.Minutes = !in.From.IsZero() && now.Sub(in.From) > history.KeptFine+clientSlack
	case apiv1.StepSecond, apiv1.StepMinute:
		in.Minutes = step == apiv1.StepMinute
	default:
		return in, invalid.Errorf("step", "%.100q: want %s or %s", step, apiv1.StepSecond, apiv1.StepMinute)
	}
	return in, nil
}
