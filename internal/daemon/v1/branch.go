package v1

import (
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/sandbox"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// branchRequest has the fields of forkd 0.5. Its booleans are the older spelling of mode; measure_diff is diff.
type branchRequest struct {
	Tag         string `json:"tag"`
	Mode        string `json:"mode"`
	Wait        bool   `json:"wait"`
	ParentTag   string `json:"parent_tag"`
	Diff        bool   `json:"diff"`
	Live        bool   `json:"live"`
	MeasureDiff bool   `json:"measure_diff"`
}

// branchMode finds out what a branch request asks for. Live is the default; it falls back to diff where it must.
func (r *branchRequest) branchMode() (vmmproto.BranchMode, error) {
	given := 0
	mode := vmmproto.BranchLive
	for _, b := range []struct {
		set  bool
		mode vmmproto.BranchMode
	}{{r.Diff, vmmproto.BranchDiff}, {r.MeasureDiff, vmmproto.BranchDiff}, {r.Live, vmmproto.BranchLive}} {
		if b.set {
			given, mode = given+1, b.mode
		}
	}
	switch {
	case given > 1:
		return 0, badRequest("diff, live, measure_diff: at most one of them")
	case given > 0 && r.Mode != "":
		return 0, badRequest("mode: excludes diff, live and measure_diff")
	case r.Mode != "":
		var err error
		if mode, err = parseMode(r.Mode); err != nil {
			return 0, err
		}
	}
	// A wait=false of a branch that was not asked to be live is a mistake, even if live is the default here.
	if !r.Wait && !r.Live && r.Mode != vmmproto.BranchLive.String() {
		return 0, badRequest("wait: only a branch with mode live can be left to itself")
	}
	if r.ParentTag != "" && mode == vmmproto.BranchFull {
		return 0, badRequest("parent_tag: a full branch has no parent")
	}
	return mode, nil
}

func parseMode(text string) (vmmproto.BranchMode, error) {
	for _, m := range []vmmproto.BranchMode{vmmproto.BranchLive, vmmproto.BranchDiff, vmmproto.BranchFull} {
		if text == m.String() {
			return m, nil
		}
	}
	return 0, badRequest("mode %q: want live, diff or full", text)
}

func (a *api) branch(w http.ResponseWriter, r *http.Request) error {
	req := branchRequest{Wait: true}
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	mode, err := req.branchMode()
	if err != nil {
		return err
	}
	if req.Tag != "" {
		if err := checkTag(req.Tag); err != nil {
			return err
		}
	}
	res, err := a.Manager.Branch(r.Context(), r.PathValue("id"), sandbox.BranchRequest{
		Tag: req.Tag, Mode: mode, ParentTag: req.ParentTag, NoWait: !req.Wait,
	})
	if err != nil {
		return err
	}
	info := snapshotOf(res.Info)
	info.setBranch(&res.Figure)
	status := http.StatusCreated
	if res.Info.Writing {
		status = http.StatusAccepted
		info.ReadyMS = nil
	}
	return writeJSON(w, status, info)
}

type rollbackRequest struct {
	To string `json:"to"` // empty: the snapshot it runs from
}

type rollbackAnswer struct {
	sandboxInfo
	RolledBackTo string  `json:"rolled_back_to"`
	VMM          float64 `json:"rollback_vmm_ms"`
	Ready        float64 `json:"rollback_ready_ms"`
}

func (a *api) rollback(w http.ResponseWriter, r *http.Request) error {
	var req rollbackRequest
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	if req.To != "" {
		if err := checkTag(req.To); err != nil {
			return err
		}
	}
	res, err := a.Manager.Rollback(r.Context(), r.PathValue("id"), req.To)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, rollbackAnswer{
		sandboxInfo: sandboxOf(res.Info), RolledBackTo: res.Tag, VMM: millis(res.VMM), Ready: millis(res.Ready),
	})
}

// onSandbox makes a handler of an operation that needs nothing but the id.
func (a *api) onSandbox(op func(r *http.Request, id string) (sandbox.Info, error)) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := readJSON(w, r, &struct{}{}); err != nil {
			return err
		}
		info, err := op(r, r.PathValue("id"))
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, sandboxOf(info))
	}
}

func (a *api) pause(r *http.Request, id string) (sandbox.Info, error) {
	return a.Manager.Pause(r.Context(), id)
}

func (a *api) resume(r *http.Request, id string) (sandbox.Info, error) {
	return a.Manager.Resume(r.Context(), id)
}

func (a *api) suspend(r *http.Request, id string) (sandbox.Info, error) {
	return a.Manager.Suspend(r.Context(), id)
}

type compactRequest struct {
	To string `json:"to"`
}

func (a *api) compactSnapshot(w http.ResponseWriter, r *http.Request) error {
	var req compactRequest
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	for _, tag := range []string{r.PathValue("tag"), req.To} {
		if err := checkTag(tag); err != nil {
			return err
		}
	}
	from := r.PathValue("tag")
	res, err := a.Manager.Compact(r.Context(), from, req.To)
	if err != nil {
		return err
	}
	info := snapshotOf(res)
	info.BranchedFrom = "compact:" + from // as forkd 0.5 says it; the new snapshot needs nothing of the old one
	return writeJSON(w, http.StatusOK, info)
}

// forkSource forks from a running sandbox instead of a snapshot.
func (a *api) forkSource(r *http.Request, source, mode string,
	fork sandbox.ForkRequest) (sandbox.ForkResult, time.Duration, error) {
	req := sandbox.BranchRequest{Mode: vmmproto.BranchLive}
	if mode != "" {
		var err error
		if req.Mode, err = parseMode(mode); err != nil {
			return sandbox.ForkResult{}, 0, err
		}
	}
	res, b, err := a.Manager.ForkSandbox(r.Context(), source, req, fork)
	return res, time.Duration(b.Figure.PauseUS) * time.Microsecond, err
}
