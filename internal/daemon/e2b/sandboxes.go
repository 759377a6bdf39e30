package e2b

import (
	"fmt"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/tenancy"
)

// States of sandboxes.
const (
	running = "running"
	paused  = "paused"
)

// stateOf returns the state of a sandbox in E2B's terms. It returns "" for a sandbox that is
// starting, has exited or is being stopped. For E2B's clients, such a sandbox does not exist.
func stateOf(i sandbox.Info) string {
	switch i.State {
	case sandbox.Running, sandbox.Restoring:
		return running
	case sandbox.Paused:
		if i.DiskFull {
			return running
		}
		return paused
	case sandbox.Suspended:
		return paused
	}
	return ""
}

// noEnd is reported as the end of a sandbox that has none, because the SDKs require a time.
var noEnd = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

// listed describes a sandbox.
type listed struct {
	SandboxID   string            `json:"sandboxID"`
	TemplateID  string            `json:"templateID"`
	ClientID    string            `json:"clientID"`
	Alias       string            `json:"alias"`
	StartedAt   time.Time         `json:"startedAt"`
	EndAt       time.Time         `json:"endAt"`
	CPUs        uint32            `json:"cpuCount"`
	MemoryMiB   uint64            `json:"memoryMB"`
	DiskMiB     uint64            `json:"diskSizeMB"`
	State       string            `json:"state"`
	EnvdVersion string            `json:"envdVersion"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Volumes     []volumeMount     `json:"volumeMounts,omitempty"`
}

// describer returns a function that describes sandboxes.
func describer(view *tenancy.View) func(sandbox.Info) listed {
	return func(i sandbox.Info) listed {
		vcpus, disk := view.Machine(i)
		return listedOf(i, vcpus, disk>>20)
	}
}

func listedOf(i sandbox.Info, vcpus uint32, diskMiB uint64) listed {
	n, _ := annotationOf(i)
	end := i.Expires
	if end.IsZero() {
		end = noEnd
	}
	return listed{SandboxID: i.ID, TemplateID: i.SnapshotTag, Alias: i.SnapshotTag, StartedAt: i.Created, EndAt: end,
		CPUs: max(vcpus, 1), MemoryMiB: i.MemoryBytes >> 20, DiskMiB: diskMiB, State: stateOf(i),
		EnvdVersion: envdVersion, Metadata: n.Metadata, Volumes: mountsFor(i.Volumes)}
}

// find returns the sandbox that a request names. It treats a sandbox for which stateOf returns "" as
// missing.
func (a *Server) find(r *http.Request) (sandbox.Info, error) {
	return get(a.view(r), r.PathValue("id"))
}

// view returns the sandboxes and snapshots that the client of a request may see.
func (a *Server) view(r *http.Request) *tenancy.View { return a.Face.View(r.Context()) }

func get(view *tenancy.View, id string) (sandbox.Info, error) {
	i, err := view.Sandbox(id)
	if err != nil {
		return i, err
	}
	if stateOf(i) == "" || build.IsBuild(i) {
		return i, &sandbox.NotFoundError{ID: id}
	}
	return i, nil
}

// detail is the full description of a sandbox.
type detail struct {
	listed
	AccessToken   string        `json:"envdAccessToken"`
	Domain        *string       `json:"domain"`
	AllowInternet *bool         `json:"allowInternetAccess"`
	Network       networkConfig `json:"network"`
	Lifecycle     lifecycle     `json:"lifecycle"`
	PauseMode     string        `json:"pauseMode,omitempty"` // whether the pause saved memory
}

type lifecycle struct {
	OnTimeout  string `json:"onTimeout"`
	AutoResume bool   `json:"autoResume"`
}

func (a *Server) info(w http.ResponseWriter, r *http.Request) error {
	i, err := a.find(r)
	if err != nil {
		return err
	}
	n, _ := annotationOf(i)
	c := a.createdOf(i)
	d := detail{listed: describer(a.view(r))(i), AccessToken: c.AccessToken, Domain: c.Domain,
		Network: configOf(i.Network.Policy), Lifecycle: lifecycle{OnTimeout: "kill", AutoResume: n.Resumes}}
	if n.Offline != nil {
		online := !*n.Offline
		d.AllowInternet = &online
	}
	public := !n.Private
	d.Network.Public = &public
	if i.ExpirySuspends {
		d.Lifecycle.OnTimeout = "pause"
	}
	if d.State == paused {
		d.PauseMode = "full"
	}
	return face.WriteJSON(w, r, http.StatusOK, d)
}

func (a *Server) kill(w http.ResponseWriter, r *http.Request) error {
	i, err := a.find(r)
	if err != nil {
		return err
	}
	if err := a.view(r).Kill(i.ID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// lifeRequest is the body of four routes: connect, resume, timeout and refreshes.
type lifeRequest struct {
	Timeout  *int64 `json:"timeout"`
	Duration *int64 `json:"duration"` // field of the route refreshes
	Memory   *bool  `json:"memory"`
	Pauses   *bool  `json:"autoPause"` // field of the route resume
}

func readLife(w http.ResponseWriter, r *http.Request) (req lifeRequest, timeout time.Duration, err error) {
	if err = readJSON(w, r, &req); err != nil {
		return req, 0, err
	}
	if req.Memory != nil && !*req.Memory {
		return req, 0, unsupported("memory: false", "a paused sandbox keeps its memory, and goes on with it")
	}
	if req.Timeout == nil {
		req.Timeout = req.Duration
	}
	timeout, err = seconds(req.Timeout, defaultTimeout)
	return req, timeout, err
}

// connect resumes a paused sandbox, or extends the time of a running one. It never shortens the
// time.
func (a *Server) connect(w http.ResponseWriter, r *http.Request) error {
	return a.connectAs(w, r, http.StatusOK)
}

// resume does the same as connect, for older SDKs. The status of its answer always says that the
// sandbox was resumed.
func (a *Server) resume(w http.ResponseWriter, r *http.Request) error {
	return a.connectAs(w, r, http.StatusCreated)
}

func (a *Server) connectAs(w http.ResponseWriter, r *http.Request, ifRunning int) error {
	req, timeout, err := readLife(w, r)
	if err != nil {
		return err
	}
	i, err := a.find(r)
	if err != nil {
		return err
	}
	status := ifRunning
	err = a.view(r).With(r.Context(), i.ID, func(h *sandbox.Held) error {
		was := h.Info()
		e := &sandbox.Expiry{At: time.Now().Add(timeout), Suspends: was.ExpirySuspends}
		if req.Pauses != nil {
			e.Suspends = *req.Pauses
		}
		changes := lengthens(was, *e)
		if stateOf(was) == paused {
			status = http.StatusCreated
			_, own := annotationOf(was)
			changes = own || !was.Expires.IsZero() // a sandbox that /v1 made without an end stays without one
		}
		if !changes {
			e = nil
		}
		err := h.Resume(r.Context(), e)
		i = h.Info()
		return err
	})
	if err != nil {
		return err
	}
	return face.WriteJSON(w, r, status, a.createdOf(i))
}

// lengthens() reports whether the expiry e is later than the present expiry of a sandbox. It
// returns false for a sandbox that does not expire.
func lengthens(i sandbox.Info, e sandbox.Expiry) bool {
	return !i.Expires.IsZero() && i.Expires.Before(e.At)
}

// setTimeout sets the end of a sandbox relative to now. A paused sandbox does not expire.
func (a *Server) setTimeout(w http.ResponseWriter, r *http.Request) error {
	return a.timeout(w, r, false)
}

// refresh is like setTimeout, but never shortens the time.
func (a *Server) refresh(w http.ResponseWriter, r *http.Request) error { return a.timeout(w, r, true) }

func (a *Server) timeout(w http.ResponseWriter, r *http.Request, onlyLonger bool) error {
	_, timeout, err := readLife(w, r)
	if err != nil {
		return err
	}
	i, err := a.find(r)
	if err != nil {
		return err
	}
	err = a.view(r).With(r.Context(), i.ID, func(h *sandbox.Held) error {
		was := h.Info()
		e := sandbox.Expiry{At: time.Now().Add(timeout), Suspends: was.ExpirySuspends}
		switch {
		case stateOf(was) == paused:
			return &sandbox.NotFoundError{ID: was.ID} // E2B's own service gives the same answer
		case onlyLonger && !lengthens(was, e):
			return nil
		}
		return h.SetExpiry(e)
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// pause suspends a sandbox. A suspended sandbox does not expire.
func (a *Server) pause(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Memory  *bool `json:"memory"`
		Healthy bool  `json:"requireHealthyGuest"`
	}
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	if req.Memory != nil && !*req.Memory {
		return unsupported("memory: false", "a paused sandbox keeps its memory")
	}
	i, err := a.find(r)
	if err != nil {
		return err
	}
	if stateOf(i) == paused {
		return face.NewError(http.StatusConflict, "sandbox "+i.ID+" is paused already")
	}
	if req.Healthy {
		if _, err := measure(r.Context(), a.view(r), i); err != nil {
			return face.NewError(http.StatusServiceUnavailable,
				fmt.Sprintf("sandbox %s is not paused: its agent does not answer: %v; "+
					"try again, or pause it without requireHealthyGuest", i.ID, err))
		}
	}
	if _, err := a.view(r).SuspendWith(r.Context(), i.ID, sandbox.Suspension{Timeless: true}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
