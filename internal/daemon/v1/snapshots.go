package v1

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/tenancy"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/vm"
)

func snapshotOf(view *tenancy.View, i store.Info) apiv1.Snapshot {
	s := apiv1.Snapshot{
		Tag: i.Tag, Dir: i.Dir, CreatedAt: i.Created.Unix(), BranchedFrom: i.Parent, Status: "ready", Bootable: true,
		Persist:    "done",
		MemSizeMiB: i.Machine.MemoryBytes >> 20, VCPUs: i.Machine.VCPUs, CPUTemplate: i.Machine.Template,
		VolumeSlots: i.Machine.VolumeSlots, Accel: i.Machine.Accel, Kernel: i.Guest.Kernel, Warm: i.Guest.Warm,
		Sandboxes: i.Leases,
	}
	switch {
	case i.Writing:
		s.Status, s.Bootable, s.Persist, s.Step = "writing", false, "pending", i.Step
	case i.Damage != "":
		s.Status, s.Bootable, s.Warning, s.Persist = "failed", false, i.Damage, "failed"
	case i.FlushErr != "":
		s.Persist = "failed"
		s.Warning = fmt.Sprintf("snapshot %q: not on disk, usable until the host restarts, tried again: %s", i.Tag,
			i.FlushErr)
	case i.InRAM, i.Arriving:
		s.Persist = "pending"
	case i.FlushedIn > 0:
		ms := millis(i.FlushedIn)
		if i.Branch != nil {
			ms += millis(time.Duration(i.Branch.Ready))
		}
		s.PersistedMS = &ms
	}
	s.Transient, s.DiskOnly, s.Arriving, s.Encrypted = i.Transient, i.DiskOnly, i.Arriving, i.Encrypted
	s.Built = i.Branch != nil && i.Branch.Template && !snapshot.IsStepTag(i.Tag)
	setBranch(view, &s, i.Branch)
	return s
}

// setBranch fills in the fields of a snapshot that is a branch.
func setBranch(view *tenancy.View, s *apiv1.Snapshot, b *snapshot.Branch) {
	if b == nil {
		return
	}
	pause, ready := millis(time.Duration(b.Pause)), millis(time.Duration(b.Ready))
	s.SandboxID, s.Mode, s.Fallback, s.PauseMS, s.ReadyMS = b.SandboxID, b.Mode, b.Fallback, &pause, &ready
	s.DirtyBytes, s.DiffBytes, s.Faults = &b.DirtyBytes, &b.DirtyBytes, &b.Faults
	if b.Mode == vm.BranchDiff.String() {
		logical := s.MemSizeMiB << 20
		s.DiffMS, s.DiffLogical = &pause, &logical
	}
	s.Labels = b.Labels
	s.After = view.TagOf(b.After)
	if b.Stop > 0 {
		stop := millis(time.Duration(b.Stop))
		s.StormStopMS = &stop
	}
}

func (a *api) listSnapshots(r *http.Request) (list[store.Info, apiv1.Snapshot], error) {
	view := a.view(r)
	images := make(map[snapshot.Base]string) // by base: each image has a file of its own, which many snapshots share
	describe := func(i store.Info) apiv1.Snapshot {
		s := snapshotOf(view, i)
		image, known := images[i.Base]
		if !known {
			image = view.BaseImage(i.Base)
			images[i.Base] = image
		}
		s.BaseImage = image
		return s
	}
	key := func(i store.Info) string { return i.Tag }
	return list[store.Info, apiv1.Snapshot]{view.Snapshots(), key, describe}, nil
}

func (a *api) createSnapshot(r *http.Request, req *apiv1.BakeRequest) (out apiv1.Baked, err error) {
	if req.Tap != "" {
		return out, invalid.Errorf("tap", "sandboxes of this daemon need no tap device; omit the field")
	}
	if req.BootWaitSecs < 0 || req.BootWaitSecs > 60 {
		return out, invalid.Errorf("boot_wait_secs", "%g: want 0 to 60", req.BootWaitSecs)
	}
	ready, err := face.Seconds("ready_timeout_secs", req.ReadyTimeoutSecs, 0, maxBoot)
	if err != nil {
		return out, err
	}
	limit, err := face.Seconds("warmup_timeout_secs", req.WarmupTimeoutSecs, 0, maxBoot)
	if err != nil {
		return out, err
	}
	network, err := settingOf("network.", req.Network)
	if err != nil {
		return out, err
	}
	limits, err := limitsOf(req.Limits, 0)
	if err != nil {
		return out, err
	}
	if limits == nil {
		limits = &vm.Limits{}
	}
	strict, err := unique.Parse(req.Unique)
	if err != nil {
		return out, err
	}
	from := req.From
	if from != "" {
		if err := snapshot.CheckTag(from); err != nil {
			return out, &invalid.Error{Field: "from", Reason: err.Error()}
		}
		var release func()
		if from, release, err = a.view(r).DiskOf(r.Context(), from); err != nil {
			return out, err
		}
		defer release()
	}
	defer a.Builds.Hold(req.Rootfs)()
	res, err := a.Baker.Bake(r.Context(), bake.Request{
		Client: auth.From(r.Context()).Who, From: from,
		Tag: req.Tag, Kernel: req.Kernel, Initrd: req.Initrd, Rootfs: req.Rootfs, MemoryMiB: req.MemSizeMiB,
		VCPUs: req.VCPUs, Template: req.CPUTemplate, VolumeSlots: req.VolumeSlots, Env: req.Env,
		Commands: req.Warmup.Commands, Python: req.Warmup.Python, Ready: ready, Warmup: limit, Network: network,
		Limits: *limits, Strict: strict == unique.Refuse, Encrypt: req.Encrypt,
	})
	if err != nil {
		return out, err
	}
	return apiv1.Baked{
		Snapshot: snapshotOf(a.view(r), res.Info), BootMS: millis(res.Boot), WarmupMS: millis(res.Warmup),
		SaveMS: millis(res.Save), PersistMS: millis(res.Persist), MemoryLayerBytes: res.MemBytes,
		GuestErrors:  res.Ready.Errors,
		WarmupOutput: res.Output,
	}, nil
}

func boolQuery(r *http.Request, name string) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return r.URL.Query().Has(name), nil // "?force" means true
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, invalid.Errorf(name, "%q: want true or false", text)
	}
	return v, nil
}

func (a *api) deleteSnapshot(r *http.Request) error {
	cascade, err := boolQuery(r, "cascade")
	if err != nil {
		return err
	}
	force, err := boolQuery(r, "force")
	if err != nil {
		return err
	}
	mode := store.DeleteSingle
	switch {
	case cascade && force:
		return face.BadRequest("cascade and force exclude each other")
	case cascade:
		mode = store.DeleteCascade
	case force:
		mode = store.DeleteForce
	}
	if err := checkTag(r.PathValue("tag")); err != nil {
		return err
	}
	return a.view(r).DeleteSnapshot(r.PathValue("tag"), mode)
}

func (a *api) snapshotInfo(r *http.Request) (out apiv1.SnapshotDetail, err error) {
	if err := checkTag(r.PathValue("tag")); err != nil {
		return out, err
	}
	d, err := a.view(r).Snapshot(r.PathValue("tag"))
	if err != nil {
		return out, err
	}
	return apiv1.SnapshotDetail{
		Snapshot: snapshotOf(a.view(r), d.Info), ID: d.ID, MemoryLogical: d.MemoryLogical,
		MemoryPhysical: d.MemoryPhysical,
		DiskPhysical:   d.DiskPhysical, VMStateBytes: d.StateBytes, ParentTag: d.Parent, ParentHash: d.ParentDigest,
		ChainDepth: len(d.Ancestors), MemoryLayers: d.MemoryLayers, DiskLayers: d.DiskLayers,
		Dependents: append([]string{}, d.Dependents...),
		Ancestors:  append([]string{}, d.Ancestors...), Sealed: d.Sealed,
	}, nil
}

func (a *api) verifySnapshot(r *http.Request) (out apiv1.Verified, err error) {
	if err := checkTag(r.PathValue("tag")); err != nil {
		return out, err
	}
	start := time.Now()
	if err := a.view(r).VerifySnapshot(r.Context(), r.PathValue("tag")); err != nil {
		return out, err
	}
	return apiv1.Verified{OK: true, VerifyMS: millis(time.Since(start))}, nil
}
