package v1

import (
	"net/http"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/tenancy"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/vm"
)

// branchMode returns the mode of a branch request. The default is live. If a live branch is not
// possible, the sandbox manager makes a diff branch.
func branchMode(r *apiv1.BranchRequest) (vm.BranchMode, error) {
	if r.Memory != nil && !*r.Memory {
		if r.Mode != "" || r.Diff || r.Live || r.MeasureDiff {
			return 0, invalid.Errorf("memory", "false excludes mode, diff, live and measure_diff: they say how memory is saved")
		}
		return vm.BranchDisk, nil
	}
	mode := vm.BranchLive
	diff := r.Diff || r.MeasureDiff // every answer has the measurements that measure_diff of forkd 0.5 requests
	if diff {
		mode = vm.BranchDiff
	}
	switch {
	case diff && r.Live:
		return 0, invalid.Errorf("live", "excludes diff and measure_diff")
	case (diff || r.Live) && r.Mode != "":
		return 0, invalid.Errorf("mode", "excludes diff, live and measure_diff")
	case r.Mode != "":
		var err error
		if mode, err = parseMode(r.Mode); err != nil {
			return 0, err
		}
	}
	if r.ParentTag != "" && mode == vm.BranchFull {
		return 0, invalid.Errorf("parent_tag", "a full branch has no parent")
	}
	return mode, nil
}

func parseMode(text string) (vm.BranchMode, error) {
	for _, m := range []vm.BranchMode{vm.BranchLive, vm.BranchDiff, vm.BranchFull} {
		if text == m.String() {
			return m, nil
		}
	}
	return 0, invalid.Errorf("mode", "%q: want live, diff or full", text)
}

func (a *api) branch(w http.ResponseWriter, r *http.Request) error {
	var req apiv1.BranchRequest
	if err := face.ReadJSON(w, r, &req); err != nil {
		return err
	}
	mode, err := branchMode(&req)
	if err != nil {
		return err
	}
	if req.Tag != "" {
		if err := checkTag(req.Tag); err != nil {
			return err
		}
	}
	start := time.Now()
	res, err := a.view(r).Branch(r.Context(), r.PathValue("id"), sandbox.BranchRequest{
		Tag: req.Tag, Mode: mode, ParentTag: req.ParentTag, Labels: req.Labels, Encrypt: req.Encrypt,
		// Branches in other modes are complete when the sandbox runs again, or soon afterwards.
		NoWait: mode == vm.BranchLive && req.Wait != nil && !*req.Wait,
	})
	a.Traces.Branch(r, start, r.PathValue("id"), res, err)
	if err != nil {
		return err
	}
	view := a.view(r)
	info := snapshotOf(view, res.Info)
	setBranch(view, &info, &res.Figure)
	if mode != vm.BranchDisk {
		info.SharedBytes = &res.Shared
	}
	status := http.StatusCreated
	if res.Info.Writing {
		status = http.StatusAccepted
		info.ReadyMS, info.SharedBytes = nil, nil
	}
	return face.WriteJSON(w, r, status, info)
}

func (a *api) rollback(r *http.Request, req *apiv1.RollbackRequest) (out apiv1.RolledBack, err error) {
	if req.To != "" {
		if err := checkTag(req.To); err != nil {
			return out, err
		}
	}
	if err := unique.Strict(req.Unique).Check(); err != nil {
		return out, err
	}
	return a.rolledBack(r)(a.view(r).Rollback(r.Context(), r.PathValue("id"), req.To, unique.Strict(req.Unique)))
}

func (a *api) promote(r *http.Request, req *apiv1.PromoteRequest) (out apiv1.RolledBack, err error) {
	id, branch := r.PathValue("id"), sandbox.BranchRequest{Tag: req.Tag, Mode: vm.BranchLive}
	if req.From == "" {
		return out, &invalid.Error{Field: "from", Reason: "missing: want the id of the sandbox to promote"}
	}
	if req.Tag != "" {
		if err := checkTag(req.Tag); err != nil {
			return out, err
		}
	}
	if req.Mode != "" {
		if branch.Mode, err = parseMode(req.Mode); err != nil {
			return out, err
		}
	}
	if _, err := a.view(r).Sandbox(req.From); err == nil { // a text that names no sandbox may be a secret
		audit.From(r.Context()).From = req.From
	}
	if err := unique.Strict(req.Unique).Check(); err != nil {
		return out, err
	}
	return a.rolledBack(r)(a.view(r).Promote(r.Context(), id, req.From, branch, unique.Strict(req.Unique)))
}

// rolledBack returns a function that converts the outcome of a rollback.
func (a *api) rolledBack(r *http.Request) func(sandbox.RollbackResult, error) (apiv1.RolledBack, error) {
	return func(res sandbox.RollbackResult, err error) (apiv1.RolledBack, error) {
		if err != nil {
			return apiv1.RolledBack{}, err
		}
		return a.rolledBackOf(a.view(r), res), nil
	}
}

func (a *api) rolledBackOf(view *tenancy.View, res sandbox.RollbackResult) apiv1.RolledBack {
	return apiv1.RolledBack{
		Sandbox: a.sandboxOf(view, res.Info), RolledBackTo: res.Tag, RollbackVMMMS: millis(res.VMM),
		RollbackReadyMS: millis(res.Ready),
	}
}

func (a *api) pause(r *http.Request, _ *struct{}) (apiv1.Sandbox, error) {
	return described(a.sandboxesFor(r))(a.view(r).Pause(r.Context(), r.PathValue("id")))
}

func (a *api) resume(r *http.Request, req *apiv1.ResumeRequest) (out apiv1.Sandbox, err error) {
	id := r.PathValue("id")
	if err := a.view(r).SetStrict(r.Context(), id, unique.Strict(req.Unique)); err != nil {
		return out, err
	}
	return described(a.sandboxesFor(r))(a.view(r).Resume(r.Context(), id))
}

func (a *api) suspend(r *http.Request, req *apiv1.SuspendRequest) (apiv1.Sandbox, error) {
	return described(a.sandboxesFor(r))(a.view(r).SuspendWith(r.Context(), r.PathValue("id"),
		sandbox.Suspension{Encrypt: req.Encrypt}))
}

func (a *api) compactSnapshot(r *http.Request, req *apiv1.CompactRequest) (out apiv1.Snapshot, err error) {
	for _, tag := range []string{r.PathValue("tag"), req.To} {
		if err := checkTag(tag); err != nil {
			return out, err
		}
	}
	from := r.PathValue("tag")
	res, err := a.view(r).Compact(r.Context(), from, req.To)
	if err != nil {
		return out, err
	}
	info := snapshotOf(a.view(r), res)
	// forkd 0.5 uses this form of the field. In fact the new snapshot does not depend on the old
	// snapshot.
	info.BranchedFrom = "compact:" + from
	return info, nil
}

// forkSource forks from a running sandbox.
func (a *api) forkSource(r *http.Request, source, mode string,
	fork sandbox.ForkRequest) (sandbox.ForkResult, time.Duration, error) {
	req := sandbox.BranchRequest{Mode: vm.BranchLive}
	if mode != "" {
		var err error
		if req.Mode, err = parseMode(mode); err != nil {
			return sandbox.ForkResult{}, 0, err
		}
	}
	res, b, err := a.view(r).ForkSandbox(r.Context(), source, req, fork)
	return res, time.Duration(b.Figure.Pause), err
}
